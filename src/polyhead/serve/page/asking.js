// What can be asked: the four forms of an input, the fields of each, and texts to begin with.

/** What is answered, labels of the first and second field, whether there are options; examples as the fields' texts. */
export const FORMS = {
  text: {
    name: "Text",
    lead: "a text, in one pass of the encoder",
    first: "Your text",
    second: null,
    hasOptions: false,
    examples: [
      ["You charged my card twice for order #48213 on 3 May. Please put this right today."],
      ["The AeroBrew 300 came on Monday and it is lovely. Ingrid uses it every morning, thank you!"],
      ["Does the desk lamp have a dimmer, and can I return it if it is too bright?"],
    ],
  },
  pair: {
    name: "Pair",
    lead: "a pair of texts",
    first: "First text",
    second: "Second text",
    hasOptions: false,
    examples: [
      ["Please close my account today.", "I would like you to delete my customer account."],
      ["Where is my parcel?", "The kettle does not switch off any more."],
      ["A man plays the guitar.", "Somebody makes music."],
    ],
  },
  passage: {
    name: "Question and context",
    lead: "a question about a context",
    first: "Question",
    second: "Context",
    hasOptions: false,
    examples: [
      [
        "When was the kettle sent?",
        "Your order left our warehouse on 3 May. The lamp followed two days later, and the kettle on 9 May.",
      ],
      ["Who repaired the roof?", "The storm took half of the roof. Ben and his sister Anna mended it before winter."],
      ["How long is the warranty?", "All kettles have a warranty of two years. Batteries are covered for six months."],
    ],
  },
  question: {
    name: "Question and options",
    lead: "a question with options",
    first: "Question",
    second: "Context, if any",
    hasOptions: true,
    examples: [
      ["What does one boil water in?", "", "a kettle\na lamp\na letter"],
      [
        "Why is the customer unhappy?",
        "The toaster came with a broken cable.",
        "it is late\nit is defect\nit is expensive",
      ],
      ["Which of these is a fruit?", "", "a pear\na chair\na stone\na cloud"],
    ],
  },
};

/** The input that the fields hold, as the server reads it. */
export function inputOf(form, [first, second, options]) {
  switch (form) {
    case "pair":
      return { text: first, text_b: second };
    case "passage":
      return { question: first, context: second };
    case "question":
      return { question: first, options: listed(options), ...(second.trim() ? { context: second } : {}) };
    default:
      return first;
  }
}

/** The options, one a line. */
export const listed = (options) =>
  options
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);

/** What keeps the fields from being asked, and the field to mend; null for nothing. */
export function complaintOf(form, [first, second, options]) {
  const { first: name, second: other, hasOptions } = FORMS[form];
  if (!first.trim()) return { field: "text", message: `${name}: type something first, or take an example.` };
  if (other && !hasOptions && !second.trim()) return { field: "second", message: `${other}: type something here too.` };
  if (hasOptions && listed(options).length < 2)
    return { field: "options", message: "Give two options or more, one a line." };
  return null;
}

/** The text in which tasks mark places: the only one, or the second of two. */
export const markedText = (form, [first, second]) => (form === "pair" || form === "passage" ? second : first);

/** The command that asks the same. */
export function curlOf(address, body, needsKey) {
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const key = needsKey ? ' \\\n  -H "Authorization: Bearer $KEY"' : "";
  const type = "-H 'Content-Type: application/json'";
  return `curl ${quoted(address)}${key} \\\n  ${type} \\\n  -d ${quoted(JSON.stringify(body))}`;
}
