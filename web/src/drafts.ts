// What was written and not sent yet, kept per conversation in this browser. It survives a reload and a sign-in that expired.

const PREFIX = "hamdam.draft.";
const key = (conversation: string | null) => PREFIX + (conversation ?? "new");

export function draft(conversation: string | null): string {
  return storage()?.getItem(key(conversation)) ?? "";
}

export function keepDraft(conversation: string | null, text: string): void {
  try {
    if (text) storage()?.setItem(key(conversation), text);
    else forgetDraft(conversation);
  } catch (error) {
    if (!(error instanceof DOMException)) throw error; // the browser's space is full: the text is still in the field
  }
}

export function forgetDraft(conversation: string | null): void {
  storage()?.removeItem(key(conversation));
}

/** Signed out: what the last person wrote is not for the next. */
export function forgetAllDrafts(): void {
  const kept = storage();
  for (const name of Object.keys(kept ?? {})) if (name.startsWith(PREFIX)) kept?.removeItem(name);
}

function storage(): Storage | null {
  try {
    return localStorage;
  } catch {
    return null; // storage may be switched off
  }
}
