"""What a class of this kind has to hold, and what this one does beside."""

from my_logger import MyLogger

from swe_rl.testing import check_logger


def test_it_conforms(tmp_path):
    check_logger(MyLogger, tmp_path, params={"columns": ["reward_mean"]})


def test_the_table_has_a_line_a_step(tmp_path):
    logger = MyLogger(tmp_path, ["reward_mean"])
    for step in (1, 2):
        logger.log({"reward_mean": 0.5 * step, "loss": 1.0}, step)
    assert (tmp_path / "my_logger.csv").read_text().splitlines() == ["step,reward_mean", "1,0.5", "2,1.0"]
