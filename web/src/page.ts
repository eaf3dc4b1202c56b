// What every component may reach: the state, the commands, and the few things that exist once on the page. Wiring only.
import { createContext } from "preact";
import { useContext } from "preact/hooks";
import type { Actions } from "./actions.ts";
import type { Announcer } from "./announcer.ts";
import type { Follower } from "./scroll.ts";
import type { State } from "./state.ts";

export interface Page {
  state: State;
  actions: Actions;
  follower: Follower;
  announcer: Announcer;
  goTo(id: string | null): void;
}

const Context = createContext<Page | null>(null);
export const PageProvider = Context.Provider;

export function usePage(): Page {
  const page = useContext(Context);
  if (!page) throw new Error("outside of the page");
  return page;
}
