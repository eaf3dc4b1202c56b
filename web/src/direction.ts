// The base direction of a message: right-to-left when about a third of its letters are. It is not the language of the interface.
//
// Code, web addresses, paths and maths are always left-to-right, so they say nothing about the language around them and are not counted.

export type Direction = "ltr" | "rtl";

const ENOUGH = 24; // letters; with fewer a Persian answer that begins with "API" would start on the wrong side
const RTL_SHARE = 0.35; // below a half: technical Persian is full of English words, the reverse hardly happens

const NOT_PROSE = /```[\s\S]*?(?:```|$)|~~~[\s\S]*?(?:~~~|$)|`[^`\n]*`?|\$\$[\s\S]*?(?:\$\$|$)|\\\([\s\S]*?\\\)|\\\[[\s\S]*?\\\]|https?:\/\/\S+|\bwww\.\S+|\S+@\S+\.\S+|(?:[\w.~-]+)?\/[\w./~-]+/g;
const LETTER = /\p{L}/gu;
const RTL_LETTER = /[\u0590-\u08ff\u{10800}-\u{10fff}\u{1e800}-\u{1efff}\ufb1d-\ufdff\ufe70-\ufefc]/u;

interface Letters {
  rtl: number;
  all: number;
}

function letters(text: string): Letters {
  const found = text.replace(NOT_PROSE, " ").match(LETTER) ?? [];
  return { all: found.length, rtl: found.filter((letter) => RTL_LETTER.test(letter)).length };
}

/** The direction of a finished text; `start` where it has no letters. */
export function directionOf(text: string, start: Direction = "ltr"): Direction {
  const { rtl, all } = letters(text);
  if (all === 0) return start;
  return rtl / all >= RTL_SHARE ? "rtl" : "ltr";
}

/** The direction of a text that still grows: it starts with the question's, is decided once, and then stays. */
export class GrowingDirection {
  private decided: Direction | null = null;

  constructor(private readonly start: Direction) {}

  /** `whole`: nothing more will come, so few letters are enough. */
  of(text: string, whole = false): Direction {
    if (this.decided) return this.decided;
    if (!whole && letters(text).all < ENOUGH) return this.start;
    return (this.decided = directionOf(text, this.start));
  }
}
