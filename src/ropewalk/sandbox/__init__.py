"""The sandbox contract, images, snapshots and forks, guest agent protocol."""
