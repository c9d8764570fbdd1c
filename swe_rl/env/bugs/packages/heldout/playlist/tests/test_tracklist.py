from playlist.tracklist import Tracklist


def test_add_at_the_end():
    tracks = Tracklist()
    tracks.titles = ["sun"]
    assert tracks.add("moon", 90) == 2
    assert tracks.titles == ["sun", "moon"]
    assert tracks.seconds == {"moon": 90}


def test_add_at_a_place():
    tracks = Tracklist()
    tracks.titles = ["sun", "sea"]
    tracks.add("moon", 90, 1)
    assert tracks.titles == ["sun", "moon", "sea"]


def test_playing_first():
    tracks = Tracklist()
    tracks.titles = ["sun", "sea"]
    assert tracks.playing() == "sun"


def test_playing_behind_the_end():
    tracks = Tracklist()
    tracks.titles = ["sun", "sea"]
    tracks.place = 2
    assert tracks.playing() is None


def test_forward_one_place():
    tracks = Tracklist()
    tracks.titles = ["sun", "sea", "sky"]
    tracks.place = 1
    assert tracks.forward() == 2


def test_forward_behind_the_end():
    tracks = Tracklist()
    tracks.titles = ["sun", "sea"]
    tracks.place = 1
    assert tracks.forward() == 2


def test_forward_looping():
    tracks = Tracklist()
    tracks.titles = ["sun", "sea"]
    tracks.place = 1
    tracks.looping = True
    assert tracks.forward() == 0


def test_forward_looping_in_the_middle():
    tracks = Tracklist()
    tracks.titles = ["sun", "sea", "sky"]
    tracks.looping = True
    assert tracks.forward() == 1


def test_back_one_place():
    tracks = Tracklist()
    tracks.place = 4
    assert tracks.back() == 3


def test_back_not_before_first():
    assert Tracklist().back() == 0


def test_loop_turns_on():
    tracks = Tracklist()
    assert tracks.loop() is True
    assert tracks.looping is True


def test_loop_again():
    tracks = Tracklist()
    tracks.looping = True
    assert tracks.loop() is False


def test_total_of_titles():
    tracks = Tracklist()
    tracks.titles = ["sun", "sea"]
    tracks.seconds = {"sun": 100, "sea": 90}
    assert tracks.total() == 190


def test_total_of_nothing():
    assert Tracklist().total() == 0


def test_left_behind_current():
    tracks = Tracklist()
    tracks.titles = ["sun", "sea", "sky", "air"]
    tracks.place = 1
    assert tracks.left() == 2


def test_left_never_negative():
    tracks = Tracklist()
    tracks.titles = ["sun"]
    tracks.place = 3
    assert tracks.left() == 0


def test_final_of_three():
    tracks = Tracklist()
    tracks.titles = ["sun", "sea", "sky"]
    assert tracks.final() == "sky"


def test_final_of_nothing():
    assert Tracklist().final() is None


def test_fitting_exact():
    tracks = Tracklist()
    tracks.titles = ["sun", "sea"]
    tracks.seconds = {"sun": 100, "sea": 90}
    assert tracks.fitting(190) == ["sun", "sea"]


def test_fitting_stops():
    tracks = Tracklist()
    tracks.titles = ["sun", "sea", "sky"]
    tracks.seconds = {"sun": 100, "sea": 90, "sky": -50}
    assert tracks.fitting(180) == ["sun"]


def test_fitting_nothing():
    tracks = Tracklist()
    tracks.titles = ["sun"]
    tracks.seconds = {"sun": 100}
    assert tracks.fitting(99) == []


def test_has_any_of_two():
    tracks = Tracklist()
    tracks.titles = ["sun", "sea"]
    assert tracks.has_any(["sky", "sea"]) is True


def test_has_any_not():
    tracks = Tracklist()
    tracks.titles = ["sun", "sea"]
    assert tracks.has_any(["sky"]) is False


def test_has_any_of_no_names():
    tracks = Tracklist()
    tracks.titles = ["sun"]
    assert tracks.has_any([]) is False


def test_shorter_in_order():
    tracks = Tracklist()
    tracks.titles = ["sun", "sea", "sky"]
    tracks.seconds = {"sun": 50, "sea": 90, "sky": 40}
    assert tracks.shorter(60) == ["sun", "sky"]


def test_shorter_at_the_limit():
    tracks = Tracklist()
    tracks.titles = ["sun"]
    tracks.seconds = {"sun": 60}
    assert tracks.shorter(60) == ["sun"]
