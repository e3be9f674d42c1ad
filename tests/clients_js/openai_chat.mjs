// openai: Chat Completions.

import OpenAI from "openai";
import { caught, parameters, play, session, url } from "./scenario.mjs";

const client = (baseURL, apiKey = "k") => new OpenAI({ baseURL: `${baseURL}/v1`, apiKey, maxRetries: 0 });
const tools = [{ type: "function", function: { name: "get_weather", parameters } }];
const asking = (content, more = {}) => ({ model: "m", messages: [{ role: "user", content }], ...more });

async function loop() {
  const { completions } = client(session("js-o-loop")).chat;
  const ask = asking("How is the weather in Paris?", { tools });
  const stream = completions.stream(ask);
  const deltas = [];
  stream.on("content", (text) => deltas.push(text));
  const [first] = (await stream.finalChatCompletion()).choices;
  const [call] = first.message.tool_calls;
  ask.messages.push(first.message, { role: "tool", tool_call_id: call.id, content: "sunny" });
  const second = await completions.create(ask);
  return {
    text: deltas.join(""),
    input: JSON.parse(call.function.arguments),
    stop: first.finish_reason,
    reply: second.choices[0].message.content,
  };
}

async function runner() {
  const asked = [];
  const run = (input) => {
    asked.push(input);
    return "sunny";
  };
  const tool = { type: "function", function: { name: "get_weather", parameters, parse: JSON.parse, function: run } };
  const ask = asking("How is the weather in Paris?", { tools: [tool] });
  return { asked, reply: await client(session("js-o-runner")).chat.completions.runTools(ask).finalContent() };
}

async function thinking() {
  const reply = await client(url, "js-o-think").chat.completions.create(asking("ponder"));
  const { message } = reply.choices[0];
  return { thought: message.reasoning_content, text: message.content };
}

async function usage() {
  const { completions } = client(url, "js-o-usage").chat;
  const whole = await completions.create(asking("hello"));
  const stream = completions.stream(asking("hello", { stream_options: { include_usage: true } }));
  return { whole: whole.usage, streamed: (await stream.finalChatCompletion()).usage };
}

async function abort() {
  const stream = client(url, "js-o-abort").chat.completions.stream(asking("linger"));
  stream.on("content", () => stream.abort());
  return caught(() => stream.done());
}

async function errors() {
  const { completions } = client(url, "js-o-errors").chat;
  return {
    model: await caught(() => completions.create(asking("hello", { model: "x" }))),
    field: await caught(() => completions.create(asking("hello", { logit_bias: { 1: 5 } }))),
    engine: await caught(() => completions.create(asking("refuse"))),
    cut: await caught(() => completions.stream(asking("break")).finalChatCompletion()),
  };
}

await play({ loop, runner, thinking, usage, abort, errors });
