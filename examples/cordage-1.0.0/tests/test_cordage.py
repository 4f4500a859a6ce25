from cordage import caesar, coiled, initials, joined, strands, widths


class TestStrands:
    def test_two(self):
        assert strands("ropewalk", 2) == ["rpwl", "oeak"]

    def test_three(self):
        assert strands("hemp and tar", 3) == ["hpnt", "e da", "ma r"]

    def test_one(self):
        assert strands("yarn", 1) == ["yarn"]

    def test_more_than_there_are(self):
        assert strands("tow", 5) == ["t", "o", "w", "", ""]

    def test_long(self):
        assert strands("abcdefghijklm", 4) == ["aeim", "bfj", "cgk", "dhl"]


class TestCaesar:
    def test_word(self):
        assert caesar("hello", 3) == "khoor"

    def test_wraps(self):
        assert caesar("xyz ropes", 5) == "cde wtujx"

    def test_upper(self):
        assert caesar("Zebra, Yak", 1) == "Afcsb, Zbl"

    def test_whole_alphabet(self):
        assert caesar("the quick brown fox", 13) == "gur dhvpx oebja sbk"

    def test_back(self):
        assert caesar("attack at dawn", 20) == "unnuwe un xuqh"


class TestCoiled:
    def test_runs(self):
        assert coiled("aaabccd") == "a3b1c2d1"

    def test_one_letter(self):
        assert coiled("zzzzzz") == "z6"

    def test_a_word(self):
        assert coiled("bookkeeper") == "b1o2k2e2p1e1r1"

    def test_spaces(self):
        assert coiled("tar  on   hemp") == "t1a1r1 2o1n1 3h1e1m1p1"

    def test_signs(self):
        assert coiled("--==---") == "-2=2-3"


class TestOthers:
    def test_initials(self):
        assert initials("ada lovelace") == "AL"

    def test_initials_long(self):
        assert initials("the rogue yarn in every rope") == "TRYIER"

    def test_initials_spaces(self):
        assert initials("  hemp   tar  ") == "HT"

    def test_widths(self):
        assert widths(["rope", "walk", "yarns"]) == [4, 4, 5, 5]

    def test_widths_empty(self):
        assert widths(["", "knot", "splice"]) == [0, 4, 6, 6]

    def test_widths_more(self):
        assert widths(["a", "bbbbbbb", "ccc", "dd"]) == [1, 7, 3, 2, 7]

    def test_joined(self):
        assert joined(["rope", "walk", "yarn"], ", ") == "rope, walk, yarn."

    def test_joined_closely(self):
        assert joined(["haw", "ser", "laid"], "-") == "haw-ser-laid."

    def test_joined_alone(self):
        assert joined(["splice"], " and ") == "splice."
