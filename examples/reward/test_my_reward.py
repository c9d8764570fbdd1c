"""What a class of this kind has to hold, and what this one does beside."""

import asyncio
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from my_reward import MyReward

from swe_rl.testing import an_attempt, check_reward


class Scores(BaseHTTPRequestHandler):
    """Stands for the reward model: every change is worth 0.75."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(b'{"score": 0.75}')

    def log_message(self, *_):
        """Says nothing."""


@pytest.fixture
def url():
    with HTTPServer(("127.0.0.1", 0), Scores) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/score"
        server.shutdown()
        thread.join()


def test_it_conforms(url):
    check_reward(MyReward, params={"url": url})


def test_it_mixes_the_score_with_the_verdict(url):
    assert asyncio.run(MyReward(url).reward(an_attempt(resolved=True))) == pytest.approx(0.875)
    assert asyncio.run(MyReward(url, weight=1.0).reward(an_attempt(resolved=False))) == pytest.approx(0.75)
