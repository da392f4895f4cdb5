#!/usr/bin/env python3
"""Places an order and follows its events. See README.md for the variables."""

import json
import os
import sys
import time
import urllib.error
import urllib.request
import uuid

SALE = os.environ["SALE"]
TOKEN = os.environ["TOKEN"]
URL = os.environ.get("URL", "http://127.0.0.1:8080")
KEY = os.environ.get("KEY", str(uuid.uuid4()))


def send(method, path, headers, read):
    """The status, the headers, and what `read` makes of the answer. Status 0 means no answer."""
    headers = {"Authorization": f"Bearer {TOKEN}", **headers}
    request = urllib.request.Request(URL + path, method=method, headers=headers)
    try:
        # A stream has a comment every 15 seconds.
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.headers, read(answer)
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.headers, json.load(refusal)
    except OSError:
        return 0, {}, {}


def decided(events):
    """The order of the first event that decides it, or of the last one before the stream ends."""
    order = {"status": "accepted"}
    for line in events:
        if line.startswith(b"data:"):
            order = json.loads(line[5:])
            if order["status"] != "accepted":
                break
    return order


def finish(body, code):
    print(json.dumps(body))
    sys.exit(code)


location, body = None, {}
for _ in range(10):
    if location is None:
        key = {"Idempotency-Key": KEY}
        status, headers, body = send("POST", f"/v1/sales/{SALE}/orders", key, json.load)
    else:
        status, headers, body = send("GET", f"{location}/events", {}, decided)
    if status in (200, 201, 202):
        location = location or headers["Location"]
        if body["status"] in ("confirmed", "paid"):
            finish(body, 0)
        if body["status"] != "accepted":
            finish(body, 3)
    elif status and not body["retryable"]:
        finish(body, 3)
    else:
        # The outcome of the attempt is unknown. The same key makes it safe to repeat.
        time.sleep(int(headers.get("Retry-After") or 1))
finish(body, 1)
