"""The errors of ``oxide.ray``, where Ray is not installed."""

from __future__ import annotations

import pickle

from oxide import errors


def test_the_error_of_a_lost_actor_keeps_its_fields_when_it_is_pickled() -> None:
    error = errors.ActorLostError("batch 3 has no result", 3, "actor 1", 2)
    same = pickle.loads(pickle.dumps(error))
    assert type(same) is errors.ActorLostError
    assert (str(same), same.batch, same.actor, same.attempts) == (str(error), 3, "actor 1", 2)
