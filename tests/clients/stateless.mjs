// The TypeScript SDK's stateless server with one tool, `list_agents`: what the bench compares the bridge with.
// Set up as the SDK's own example does it: a server and a transport per request. Prints its URL.

import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { createMcpExpressApp } from '@modelcontextprotocol/sdk/server/express.js';
import * as z from 'zod/v4';

const text = z.string().nullable();
const count = z.number().nullable();
const exit = z.object({
  code: count, signal: text, at: z.string(), reason: z.string(), forced: z.boolean(), leftovers: z.number(),
});
const agent = z.object({
  name: z.string(), kind: z.string(), state: z.string(), pid: count, generation: z.number(), startedAt: text,
  uptimeMs: count, autostart: z.boolean(), tty: z.boolean(), sessionId: text, connectedAt: text,
  configChanged: z.boolean(), listed: z.boolean(), logFile: z.string(), lastExit: exit.nullable(),
});
// What the bridge answers with for one agent that runs.
const now = new Date().toISOString();
const agents = [{
  name: 'worker', kind: 'generic', state: 'running', pid: process.pid, generation: 2, startedAt: now, uptimeMs: 61234,
  autostart: false, tty: false, sessionId: null, connectedAt: now, configChanged: false, listed: true,
  logFile: '/home/user/.local/state/mcp-restart/logs/worker.log',
  lastExit: { code: null, signal: 'SIGTERM', at: now, reason: 'restart', forced: false, leftovers: 0 },
}];

function server() {
  const server = new McpServer({ name: 'stateless', version: '1.0.0' });
  const shape = { description: 'Lists the agents', inputSchema: {}, outputSchema: { agents: z.array(agent) } };
  server.registerTool('list_agents', shape, async () => ({
    content: [{ type: 'text', text: JSON.stringify({ agents }) }],
    structuredContent: { agents },
  }));
  return server;
}

const app = createMcpExpressApp();
app.post('/mcp', async (request, response) => {
  const one = server();
  const transport = new StreamableHTTPServerTransport({ sessionIdGenerator: undefined, enableJsonResponse: true });
  response.on('close', () => {
    transport.close();
    one.close();
  });
  await one.connect(transport);
  await transport.handleRequest(request, response, request.body);
});

const listener = app.listen(0, '127.0.0.1', () => console.log(`http://127.0.0.1:${listener.address().port}/mcp`));
