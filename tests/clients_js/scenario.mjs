// What the scripts share. Each is run as `node NAME.mjs URL`, plays its scenarios against that server, and prints one JSON object:
// the name of a scenario -> what it saw. The Python tests that start them judge it.

export const url = process.argv[2];

export const session = (sid) => `${url}/s/${sid}`;

export const parameters = {
  type: "object",
  properties: { city: { type: "string" }, days: { type: "integer" } },
  required: ["city"],
};

// What an error is to whoever catches it.
export async function caught(work) {
  try {
    await work();
  } catch (error) {
    return { kind: error.constructor.name, status: error.status ?? null, message: error.message };
  }
  return null;
}

export async function play(scenarios) {
  const seen = {};
  for (const [name, scenario] of Object.entries(scenarios)) {
    seen[name] = await scenario();
  }
  console.log(JSON.stringify(seen));
}
