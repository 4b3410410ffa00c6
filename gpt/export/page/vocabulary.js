"use strict";

const SIGNS = { "\n": "↵", "\t": "⇥", " ": "␣" };
const SPOKEN = { "\n": "newline", "\t": "tab", " ": "space" };
const LISTED_CHARACTERS = 20;  // largest number of characters in a notice; it counts the others

/** Text to ids and back, as in gpt/text/vocabulary.py. */
class Vocabulary {
  /** @param {{characters: string, bytes: boolean}} vocabulary of the header */
  constructor({ characters = "", bytes = false }) {
    this.isBytes = bytes;
    this.unit = bytes ? "byte" : "character";
    this.names = bytes
      ? Array.from({ length: 256 }, (_, i) => (i < 128 ? String.fromCharCode(i) : `\\x${i.toString(16)}`))
      : [...characters];
    this.known = new Map([...characters].map((c, id) => [c, id]));
    // an empty prompt is a newline, or the first character
    this.start = bytes ? 10 : (this.known.get("\n") ?? 0);
  }

  normalized(text) {
    return text.replace(/\r\n?/g, "\n");
  }

  /**
   * Encode a text after normalising it. Unknown characters are dropped.
   * @returns {{ids: number[], outside: Map<string, number>}} ids, and how often each unknown character occurs
   */
  encode(text) {
    const ids = [], outside = new Map();
    const encoder = new TextEncoder();
    for (const c of this.normalized(text)) {
      const isSurrogate = c >= "\ud800" && c <= "\udfff" && c.length === 1;
      if (this.isBytes && !isSurrogate) ids.push(...encoder.encode(c));
      else if (this.known.has(c)) ids.push(this.known.get(c));
      else outside.set(c, (outside.get(c) ?? 0) + 1);
    }
    return { ids, outside };
  }

  decode(ids) {
    return this.isBytes ? new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(ids))
      : ids.map((id) => this.names[id]).join("");
  }

  /** Return a function that maps the next id to the text that it completes: "" within a character's bytes. */
  decoder() {
    if (!this.isBytes) return (id) => this.names[id];
    const utf8 = new TextDecoder("utf-8", { ignoreBOM: true });
    return (id) => utf8.decode(Uint8Array.of(id), { stream: true });
  }
}

/** Return a visible form of a character or of a byte's name, as `symbol` in gpt/terminal.py does. */
function symbol(name) {
  if ([...name].length !== 1) return name;
  if (name in SIGNS) return SIGNS[name];
  if (/\p{M}/u.test(name)) return `◌${name}`;
  return /[\p{C}\p{Z}]/u.test(name) ? escaped(name) : name;
}

function escaped(c) {
  const code = c.codePointAt(0), hex = code.toString(16);
  if (code < 0x100) return `\\x${hex.padStart(2, "0")}`;
  return code < 0x10000 ? `\\u${hex.padStart(4, "0")}` : `\\U${hex.padStart(8, "0")}`;
}

/** Return what a screen reader should say for a name. */
const spoken = (name) => SPOKEN[name] ?? symbol(name);

/** Replace \n, \t and \\ in a stop string that was typed in one line. */
const unescaped = (text) => text.replace(/\\([nt\\])/g, (_, c) => ({ n: "\n", t: "\t", "\\": "\\" })[c]);

/** Describe unknown characters and how often they occur. */
function listed(outside) {
  const characters = [...outside.keys()];
  const more = characters.length - LISTED_CHARACTERS;
  return characters.slice(0, LISTED_CHARACTERS).map(symbol).join(" ") + (more > 0 ? ` and ${more} more` : "");
}
