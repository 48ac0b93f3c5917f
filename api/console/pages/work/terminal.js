// The lines of a program's output as a terminal shows them: "\r" begins its line anew, colours and moves are left out.

const ESC = String.fromCharCode(27);
const BEL = String.fromCharCode(7);
// ECMA-48, as the server leaves it out of logs: control sequences, strings with their end, the other sequences.
const ESCAPES = new RegExp(`${ESC}(?:\\[[0-?]*[ -/]*[@-~]|\\][^${BEL}${ESC}]*(?:${BEL}|${ESC}\\\\)|[PX^_][^${ESC}]*${ESC}\\\\|[ -/]*[0-OQ-WYZ\\\\\`-~])`, "g");
const KEPT = new Set(["\n", "\r", "\t"]);

// A line that is written: its text, and the place of the next character.
export class Line {
  constructor() {
    this.text = "";
    this.column = 0;
  }

  // Takes a piece; returns the lines that are over by it, each with its end.
  write(piece) {
    let over = "";
    for (const part of piece.split(/([\r\n])/)) {
      if (part === "\n") {
        over += `${this.text}\n`;
        this.text = "";
        this.column = 0;
      } else if (part === "\r") {
        this.column = 0;
      } else if (part) {
        this.text = this.text.slice(0, this.column) + part + this.text.slice(this.column + part.length);
        this.column += part.length;
      }
    }
    return over;
  }
}

// A whole text in that way.
export function plain(text) {
  const line = new Line();
  return line.write([...text.replace(ESCAPES, "")].filter(isShown).join("")) + line.text;
}

const isShown = (character) => character >= " " || KEPT.has(character);
