"""`search`: program repair that uses forks. Localise by visible tests, try one edit per fork, keep what is better."""
