// @google/genai: the Gemini API.

import { GoogleGenAI } from "@google/genai";
import { caught, parameters, play, session, url } from "./scenario.mjs";

const client = (baseUrl, apiKey = "k") => new GoogleGenAI({ apiKey, httpOptions: { baseUrl } });
const declaration = { name: "get_weather", description: "Weather.", parametersJsonSchema: parameters };
const tools = [{ functionDeclarations: [declaration] }];
const asking = (contents, config = {}) => ({ model: "m", contents, config });

async function all(stream) {
  const chunks = [];
  for await (const chunk of await stream) chunks.push(chunk);
  return chunks;
}

const partsOf = (chunks) => chunks.flatMap((chunk) => chunk.candidates[0].content.parts);
const textOf = (parts, thought) => parts.filter((part) => Boolean(part.thought) === thought).map((part) => part.text ?? "").join("");

async function loop() {
  const { models } = client(session("js-g-loop"));
  const contents = [{ role: "user", parts: [{ text: "How is the weather in Paris?" }] }];
  const chunks = await all(models.generateContentStream(asking(contents, { tools })));
  const parts = partsOf(chunks);
  const call = parts.find((part) => part.functionCall).functionCall;
  const functionResponse = { id: call.id, name: call.name, response: { output: "sunny" } };
  contents.push({ role: "model", parts }, { role: "user", parts: [{ functionResponse }] });
  const second = await models.generateContent(asking(contents, { tools }));
  const stop = chunks.at(-1).candidates[0].finishReason;
  return { text: textOf(parts, false), input: call.args, stop, reply: second.text };
}

async function chat() {
  const config = { thinkingConfig: { includeThoughts: true } };
  const talk = client(session("js-g-chat")).chats.create({ model: "m", config });
  const parts = partsOf(await all(talk.sendMessageStream({ message: "ponder" })));
  const second = await talk.sendMessage({ message: "and now?" });
  return { thought: textOf(parts, true), text: textOf(parts, false), reply: second.text };
}

async function usage() {
  const { models } = client(url, "js-g-usage");
  const whole = await models.generateContent(asking("hello"));
  const chunks = await all(models.generateContentStream(asking("hello")));
  const counted = await models.countTokens({ model: "m", contents: "hello" });
  const text = textOf(partsOf(chunks), false);
  return { whole: whole.usageMetadata, streamed: chunks.at(-1).usageMetadata, counted: counted.totalTokens, text };
}

async function abort() {
  const { models } = client(url, "js-g-abort");
  const aborter = new AbortController();
  return caught(async () => {
    const stream = await models.generateContentStream(asking("linger", { abortSignal: aborter.signal }));
    for await (const chunk of stream) {
      if (chunk.text) aborter.abort();
    }
  });
}

async function errors() {
  const { models } = client(url, "js-g-errors");
  const forced = { tools, toolConfig: { functionCallingConfig: { mode: "ANY" } } };
  return {
    model: await caught(() => models.generateContent({ ...asking("hello"), model: "x" })),
    field: await caught(() => models.generateContent(asking("hello", forced))),
    engine: await caught(() => models.generateContent(asking("refuse"))),
    cut: await caught(() => all(models.generateContentStream(asking("break")))),
  };
}

await play({ loop, chat, usage, abort, errors });
