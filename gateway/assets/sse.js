// Server-sent events out of a fetched body. EventSource can't send an Authorization header, and a token in a URL would
// end up in logs and histories.

/** Messages {event, data, id} of a stream of text chunks; one that the end cuts off is left out. */
export async function* messages(chunks) {
  let rest = "";
  let fields = {};
  for await (const chunk of chunks) {
    const lines = (rest + chunk).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if ("data" in fields) yield { event: "message", id: "", ...fields };
        fields = {};
      } else if (!line.startsWith(":")) {
        take(fields, line.replace(/\r$/, ""));
      }
    }
  }
}

/** The chunks of a response's body as text. Leaving the loop cancels the request. */
export async function* textOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

function take(fields, line) {
  const colon = line.indexOf(":");
  const name = colon < 0 ? line : line.slice(0, colon);
  const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
  fields[name] = name === "data" && "data" in fields ? `${fields.data}\n${value}` : value;
}
