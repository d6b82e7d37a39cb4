// Signing in and out. The session itself is an HttpOnly cookie that scripts never see.

export type Role = "viewer" | "clinician" | "administrator";

export interface Session {
  readonly name: string;
  readonly role: Role;
}

export class SignInError extends Error {}

export async function current(): Promise<Session | null> {
  const response = await fetch("/api/session", { cache: "no-store" });
  return response.status === 200 ? ((await response.json()) as Session) : null;
}

// viaProvider reports whether people may sign in at a provider, at /api/sso/begin.
export async function viaProvider(): Promise<boolean> {
  try {
    const response = await fetch("/api/sso", { cache: "no-store" });
    return response.ok && ((await response.json()) as { available: boolean }).available;
  } catch {
    return false;
  }
}

async function post(path: string, body: object): Promise<Session> {
  let response: Response;
  try {
    response = await fetch(path, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
    });
  } catch {
    throw new SignInError("The dashboard cannot be reached. Check the connection and try again.");
  }
  if (response.ok) return (await response.json()) as Session;
  if (response.status === 429) {
    const seconds = Number(response.headers.get("retry-after") ?? "30");
    throw new SignInError(`Too many attempts. Try again in ${seconds} s.`);
  }
  if (response.status === 401) {
    throw new SignInError("code" in body ? "This link was used already or has expired." : "Name or password is wrong.");
  }
  throw new SignInError("Signing in failed on the server. Try again in a moment.");
}

export function signIn(name: string, password: string): Promise<Session> {
  return post("/api/sign-in", { name, password });
}

// exchange turns the code of a one-time link into a session.
export function exchange(code: string): Promise<Session> {
  return post("/api/sign-in-code", { code });
}

export async function signOut(): Promise<void> {
  await fetch("/api/sign-out", { method: "POST", headers: { "content-type": "application/json" }, body: "{}" });
}

export function mayAct(session: Session): boolean {
  return session.role !== "viewer";
}
