#!/usr/bin/env node
// Places an order and follows its events. See README.md for the variables.

import { randomUUID } from "node:crypto";

const { SALE, TOKEN, URL: base = "http://127.0.0.1:8080", KEY = randomUUID() } = process.env;
if (!SALE || !TOKEN) throw new Error("set SALE and TOKEN");

/** The status, the headers, and what `read` makes of the answer. Status 0 means no answer. */
async function send(method, path, headers, read) {
  const abort = new AbortController();
  const late = setTimeout(() => abort.abort(), 60_000);
  try {
    const answer = await fetch(base + path, {
      method,
      headers: { Authorization: `Bearer ${TOKEN}`, ...headers },
      signal: abort.signal,
    });
    const body = answer.ok ? await read(answer) : await answer.json();
    return { status: answer.status, headers: answer.headers, body };
  } catch {
    return { status: 0, headers: new Headers(), body: {} };
  } finally {
    clearTimeout(late);
    abort.abort(); // ends a stream that is still open
  }
}

/** The order of the first event that decides it, or of the last one before the stream ends. */
async function decided(answer) {
  let order = { status: "accepted" };
  let text = "";
  const decoder = new TextDecoder();
  for await (const bytes of answer.body) {
    text += decoder.decode(bytes, { stream: true });
    const lines = text.split("\n");
    text = lines.pop(); // not yet complete
    for (const line of lines.filter((line) => line.startsWith("data:"))) {
      order = JSON.parse(line.slice(5));
      if (order.status !== "accepted") return order;
    }
  }
  return order;
}

async function order() {
  let location;
  let body = {};
  for (let tries = 0; tries < 10; tries++) {
    const answer = location
      ? await send("GET", `${location}/events`, {}, decided)
      : await send("POST", `/v1/sales/${SALE}/orders`, { "Idempotency-Key": KEY }, (answer) => answer.json());
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
