// @anthropic-ai/sdk: Messages.

import Anthropic from "@anthropic-ai/sdk";
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";
import { caught, parameters, play, session, url } from "./scenario.mjs";

const client = (baseURL, apiKey = "k") => new Anthropic({ baseURL, apiKey, maxRetries: 0 });
const tools = [{ name: "get_weather", description: "Weather.", input_schema: parameters }];
const asking = (content, more = {}) => ({ model: "m", max_tokens: 100, messages: [{ role: "user", content }], ...more });

async function loop() {
  const messages = client(session("js-a-loop")).messages;
  const ask = asking("How is the weather in Paris?", { tools });
  const stream = messages.stream(ask);
  const deltas = [];
  stream.on("text", (text) => deltas.push(text));
  const first = await stream.finalMessage();
  const use = first.content.find((block) => block.type === "tool_use");
  ask.messages.push({ role: "assistant", content: first.content });
  ask.messages.push({ role: "user", content: [{ type: "tool_result", tool_use_id: use.id, content: "sunny" }] });
  const second = await messages.create(ask);
  return { text: deltas.join(""), input: use.input, stop: first.stop_reason, reply: second.content[0].text };
}

async function runner() {
  const asked = [];
  const run = (input) => {
    asked.push(input);
    return "sunny";
  };
  const tool = betaTool({ name: "get_weather", description: "Weather.", inputSchema: parameters, run });
  const ask = asking("How is the weather in Paris?", { tools: [tool] });
  const last = await client(session("js-a-runner")).beta.messages.toolRunner(ask).runUntilDone();
  return { asked, reply: last.content[0].text };
}

async function thinking() {
  const ask = asking("ponder", { max_tokens: 2000, thinking: { type: "enabled", budget_tokens: 1024 } });
  const reply = await client(url, "js-a-think").messages.stream(ask).finalMessage();
  const [thought, text] = reply.content;
  return { thought: thought.thinking, signed: thought.signature.length > 0, text: text.text };
}

async function usage() {
  const { messages } = client(url, "js-a-usage");
  const whole = await messages.create(asking("hello"));
  const streamed = await messages.stream(asking("hello")).finalMessage();
  const counted = await messages.countTokens({ model: "m", messages: asking("hello").messages });
  return { whole: whole.usage, streamed: streamed.usage, counted: counted.input_tokens };
}

async function abort() {
  const stream = client(url, "js-a-abort").messages.stream(asking("linger"));
  stream.on("text", () => stream.abort());
  return caught(() => stream.done());
}

async function errors() {
  const { messages } = client(url, "js-a-errors");
  return {
    model: await caught(() => messages.create(asking("hello", { model: "x" }))),
    field: await caught(() => messages.create(asking("hello", { tools, tool_choice: { type: "any" } }))),
    engine: await caught(() => messages.create(asking("refuse"))),
    cut: await caught(() => messages.stream(asking("break")).finalMessage()),
  };
}

await play({ loop, runner, thinking, usage, abort, errors });
