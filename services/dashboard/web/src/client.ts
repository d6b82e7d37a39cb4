// The client of the dashboard's QueryService. The browser adds the session cookie by itself.
import { Code, ConnectError, createClient, type Client } from "@connectrpc/connect";
import { createGrpcWebTransport } from "@connectrpc/connect-web";
import { QueryService } from "./gen/braid/query/v1/query_pb";
import { t } from "./text";

export type Query = Client<typeof QueryService>;

export function connect(): Query {
  return createClient(
    QueryService,
    createGrpcWebTransport({ baseUrl: window.location.origin, useBinaryFormat: true }),
  );
}

export function isSignedOut(error: unknown): boolean {
  return ConnectError.from(error).code === Code.Unauthenticated;
}

export function reason(error: unknown): string {
  const { rawMessage, cause } = ConnectError.from(error);
  // The browser's own text, such as "Failed to fetch", says nothing to people.
  return cause instanceof TypeError ? t("the dashboard does not answer") : rawMessage;
}
