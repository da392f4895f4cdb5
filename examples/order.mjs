#!/usr/bin/env node
// Places an order and follows it. See README.md for the variables.

import { randomUUID } from "node:crypto";

const { SALE, TOKEN, URL: base = "http://127.0.0.1:8080", KEY = randomUUID() } = process.env;
if (!SALE || !TOKEN) throw new Error("set SALE and TOKEN");

/** The status, the headers and the JSON body of an answer. Status 0 means no answer. */
async function send(method, path, headers = {}) {
  try {
    const answer = await fetch(base + path, {
      method,
      headers: { Authorization: `Bearer ${TOKEN}`, ...headers },
      signal: AbortSignal.timeout(20_000),
    });
    return { status: answer.status, headers: answer.headers, body: await answer.json() };
  } catch {
    return { status: 0, headers: new Headers(), body: {} };
  }
}

async function order() {
  let location;
  let body = {};
  for (let tries = 0; tries < 10; tries++) {
    const answer = location
      ? await send("GET", `${location}?wait=10`)
      : await send("POST", `/v1/sales/${SALE}/orders`, { "Idempotency-Key": KEY });
    body = answer.body;
    if ([200, 201, 202].includes(answer.status)) {
      location ??= answer.headers.get("Location");
      if (["confirmed", "paid"].includes(body.status)) return { body, code: 0 };
      if (body.status !== "accepted") return { body, code: 3 };
    } else if (answer.status && !body.retryable) {
      return { body, code: 3 };
    } else {
      // The outcome of the attempt is unknown. The same key makes it safe to repeat.
      const seconds = Number(answer.headers.get("Retry-After") ?? 1);
      await new Promise((resume) => setTimeout(resume, seconds * 1000));
    }
  }
  return { body, code: 1 };
}

const { body, code } = await order();
console.log(JSON.stringify(body));
process.exitCode = code;
