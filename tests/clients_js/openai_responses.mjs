// openai: Responses.

import OpenAI from "openai";
import { caught, parameters, play, session, url } from "./scenario.mjs";

const client = (baseURL, apiKey = "k") => new OpenAI({ baseURL: `${baseURL}/v1`, apiKey, maxRetries: 0 });
const tools = [{ type: "function", name: "get_weather", parameters, strict: false }];
const asking = (input, more = {}) => ({ model: "m", input, ...more });

async function loop() {
  const { responses } = client(session("js-r-loop"));
  const stream = responses.stream(asking("How is the weather in Paris?", { tools }));
  const deltas = [];
  stream.on("response.output_text.delta", (event) => deltas.push(event.delta));
  const first = await stream.finalResponse();
  const call = first.output.find((item) => item.type === "function_call");
  const answer = { type: "function_call_output", call_id: call.call_id, output: "sunny" };
  const second = await responses.create(asking([answer], { tools, previous_response_id: first.id }));
  return { text: deltas.join(""), input: JSON.parse(call.arguments), stop: first.status, reply: second.output_text };
}

async function thinking() {
  const reply = await client(url, "js-r-think").responses.create(asking("ponder", { reasoning: { summary: "auto" } }));
  const reasoning = reply.output.find((item) => item.type === "reasoning");
  return { thought: reasoning.summary[0].text, text: reply.output_text };
}

async function usage() {
  const { responses } = client(url, "js-r-usage");
  const whole = await responses.create(asking("hello"));
  const streamed = await responses.stream(asking("hello")).finalResponse();
  return { whole: whole.usage, streamed: streamed.usage };
}

async function again() {
  const { responses } = client(url, "js-r-again");
  const events = [];
  for await (const event of await responses.create(asking("hello", { stream: true }))) events.push(event);
  const rest = [];
  const more = { stream: true, starting_after: events[1].sequence_number };
  for await (const event of await responses.retrieve(events[0].response.id, more)) rest.push(event);
  return { first: events.slice(2), again: rest };
}

async function abort() {
  const stream = client(url, "js-r-abort").responses.stream(asking("linger"));
  stream.on("response.output_text.delta", () => stream.abort());
  return caught(() => stream.done());
}

async function errors() {
  const { responses } = client(url, "js-r-errors");
  return {
    model: await caught(() => responses.create(asking("hello", { model: "x" }))),
    field: await caught(() => responses.create(asking("hello", { tool_choice: "required", tools }))),
    engine: await caught(() => responses.create(asking("refuse"))),
    cut: await caught(() => responses.stream(asking("break")).finalResponse()),
  };
}

await play({ loop, thinking, usage, again, abort, errors });
