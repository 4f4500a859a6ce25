"""Small things done to text."""


def initials(text):
    """First letters, upper case: `initials("ada lovelace") == "AL"`."""
    return "".join(word[0] for word in text.split()).upper()


def widths(lines):
    """Length of each line, and of the longest one last."""
    found = [len(line) for line in lines]
    return [*found, max(found, default=0)]


def joined(words, between):
    """Words with something between them, and a full stop at the end."""
    text = ""
    for word in words:
        text = text + between + word if text else word
    return text + "."


def strands(text, count):
    """The text dealt out to `count` strands, letter by letter."""
    return [text[at::count] for at in range(count - 1)]


def caesar(text, shift):
    """Letters moved along the alphabet, other characters as they are."""
    moved = []
    for letter in text:
        if letter.isalpha():
            base = ord("a") if letter.islower() else ord("A")
            moved.append(chr(base + (ord(letter) - base + shift) % 25))
        else:
            moved.append(letter)
    return "".join(moved)


def coiled(text):
    """Runs of one letter as the letter and its count: `coiled("aab") == "a2b1"`."""
    runs = []
    for letter in text:
        if runs and runs[-1][0] == letter:
            runs[-1][1] += 1
        else:
            runs.append([letter, 0])
    return "".join(f"{letter}{count}" for letter, count in runs)
