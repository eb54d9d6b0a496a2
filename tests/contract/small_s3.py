"""The S3 protocol in a dictionary, for tests that bend one answer of it; not a model of any store."""

from __future__ import annotations

from collections.abc import Callable

from tests.contract.stub_server import Answer, Request

Rule = Callable[[Request, Answer], Answer | None]


def error(status: int, code: str, headers: dict[str, str] | None = None) -> Answer:
    body = f"<Error><Code>{code}</Code><Message>as the test wants</Message><RequestId>r</RequestId></Error>"
    return Answer(status, body.encode(), {"Content-Type": "application/xml"} | (headers or {}))


class SmallS3:
    """Answers for a ``StubServer``: objects by path.

    Args:
        rule: Sees every request with the answer it would get, after its effect, and may put another in its place.
        before: Sees every request first; what it answers is sent at once, without any effect.
    """

    def __init__(self, *, rule: Rule | None = None, before: Callable[[Request], Answer | None] | None = None) -> None:
        self.objects: dict[str, bytes] = {}
        self._rule = rule
        self._before = before

    def __call__(self, request: Request) -> Answer:
        refused = self._before(request) if self._before is not None else None
        if refused is not None:
            return refused
        answer = self._answer(request)
        bent = self._rule(request, answer) if self._rule is not None else None
        return answer if bent is None else bent

    def _answer(self, request: Request) -> Answer:
        if request.method == "PUT":
            if "If-None-Match" in request.headers and request.path in self.objects:
                return error(412, "PreconditionFailed")
            self.objects[request.path] = request.body
            return Answer(headers={"ETag": '"x"'})
        if request.method == "DELETE":
            self.objects.pop(request.path, None)
            return Answer(204)
        if request.query.get("list-type") == "2":
            return self._listing(request)
        content = self.objects.get(request.path)
        if content is None:
            return error(404, "NoSuchKey")
        if request.method == "HEAD":
            return Answer(headers={"ETag": '"x"'}, announced=len(content))
        if "Range" not in request.headers:
            return Answer(body=content, headers={"ETag": '"x"'})
        first, _, last = request.headers["Range"].removeprefix("bytes=").partition("-")
        start, stop = int(first), min(int(last) + 1, len(content))
        if start >= len(content):
            return error(416, "InvalidRange")
        return Answer(206, content[start:stop], {"Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"})

    def _listing(self, request: Request) -> Answer:
        bucket = request.path.split("/")[1]
        names = sorted(path.removeprefix(f"/{bucket}/") for path in self.objects)
        after, prefix = request.query.get("start-after", ""), request.query.get("prefix", "")
        found = "".join(
            f"<Contents><Key>{name}</Key><Size>{len(self.objects[f'/{bucket}/{name}'])}</Size></Contents>"
            for name in names
            if name.startswith(prefix) and name > after
        )
        return Answer(body=f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>".encode())
