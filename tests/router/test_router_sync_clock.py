from swe_rl.router.tr_state import SyncClock


def test_it_stands_still_during_syncs_and_syncs_nest():
    clock = SyncClock()
    clock.set(10.0)
    assert clock.now_s == 10 and not clock.syncing
    clock.begin()
    clock.set(14.0)
    clock.begin()
    assert clock.now_s == 10
    assert not clock.end(kv_kept=False) and clock.syncing  # the outermost says what is lost
    clock.set(20.0)
    assert clock.end(kv_kept=True) and not clock.syncing
    clock.set(23.0)
    assert clock.now_s == 13


def test_a_cache_may_outlive_a_sync_and_stray_ends_are_nothing():
    clock = SyncClock()
    assert not clock.end(kv_kept=False)
    clock.begin()
    assert not clock.end(kv_kept=True) and not clock.syncing
    clock.set(5.0)
    clock.set(3.0)
    assert clock.now_s == 5
