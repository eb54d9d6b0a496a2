"""From what DCP raises back to what happened."""

from __future__ import annotations

from torch.distributed.checkpoint.api import CheckpointException

from objckpt.errors import ObjckptError


def cause(error: BaseException) -> BaseException:
    """The original of an error that came through DCP.

    DCP wraps what any rank raised in a ``CheckpointException``, which is no ``Exception``. Of several
    ranks' errors, one of objckpt's own is preferred, of the lowest rank.

    Returns:
        The first ``ObjckptError`` that is found, else the first failure, else ``error`` itself.
    """
    found = [error]
    for candidate in found:
        if isinstance(candidate, ObjckptError):
            return candidate
        if isinstance(candidate, CheckpointException):
            found.extend(failure[0] for _, failure in sorted(candidate.failures.items()))
        for behind in (candidate.__cause__, candidate.__context__):
            if behind is not None and behind not in found:
                found.append(behind)
    return found[1] if isinstance(error, CheckpointException) and len(found) > 1 else error
