// The TypeScript SDK as a client: every tool is listed and called. The SDK checks each structured result against
// the tool's output schema, so a result that breaks it fails here.

import assert from 'node:assert/strict';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

const url = process.env.MCP_URL;
const note = 'carry on with the second chapter';
const tools = [
  'agent_logs', 'get_handoff', 'list_agents', 'restart_agent', 'server_status', 'start_agent', 'stop_agent',
  'list_stdio_servers', 'restart_stdio_servers',
].sort();
const changing = ['restart_agent', 'restart_stdio_servers', 'start_agent', 'stop_agent'];

async function connect(headers = {}) {
  const client = new Client({ name: 'proof', version: '1' });
  await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }));
  // The client keeps the output schemas of the tools that it listed, and checks against those alone.
  const listed = (await client.listTools()).tools;
  return { client, listed };
}

/** The structured result of a call that succeeds; its text is the same JSON. */
async function call(client, name, args = {}) {
  const result = await client.callTool({ name, arguments: args });
  assert.ok(!result.isError, JSON.stringify(result));
  assert.deepEqual(JSON.parse(result.content[0].text), result.structuredContent);
  return result.structuredContent;
}

/** The code of a call that is refused: JSON text, without a structured result. */
async function refusal(client, name, args = {}) {
  const result = await client.callTool({ name, arguments: args });
  assert.equal(result.isError, true, JSON.stringify(result));
  assert.equal(result.structuredContent, undefined);
  const { error } = JSON.parse(result.content[0].text);
  assert.ok(error.message && 'hint' in error, JSON.stringify(error));
  return error.code;
}

const { client: user, listed } = await connect();
const { client: agent } = await connect({ Authorization: `Bearer ${process.env.AGENT_TOKEN}` });

assert.deepEqual(listed.map((tool) => tool.name).sort(), tools);
for (const tool of listed) {
  assert.ok(tool.title && tool.description && tool.outputSchema, tool.name);
  assert.equal(tool.annotations.readOnlyHint, !changing.includes(tool.name), tool.name);
}

const [worker] = (await call(user, 'list_agents')).agents;
assert.deepEqual([worker.name, worker.state, worker.pid], ['worker', 'stopped', null]);
assert.equal((await call(user, 'server_status')).url, url);

const started = (await call(user, 'start_agent', { name: 'worker' })).agent;
assert.equal(started.state, 'running');
assert.equal(await refusal(user, 'start_agent', { name: 'worker' }), 'already_running');

const restarted = await call(user, 'restart_agent', { name: 'worker', note });
assert.equal(restarted.accepted, true);
assert.equal(restarted.previous.pid, started.pid);
assert.notEqual(restarted.agent.pid, started.pid);
assert.equal(restarted.agent.generation, started.generation + 1);

const handoff = await call(agent, 'get_handoff');
assert.deepEqual(handoff.notes.map(({ text }) => text), [note]);
const logs = await call(user, 'agent_logs', { name: 'worker', lines: 100 });
assert.ok(logs.lines.includes(`generation ${restarted.agent.generation} is ready`), JSON.stringify(logs));

const stopped = (await call(user, 'stop_agent', { name: 'worker' })).agent;
assert.deepEqual([stopped.state, stopped.lastExit.reason], ['stopped', 'stop']);
assert.equal(await refusal(user, 'stop_agent', { name: 'worker' }), 'not_running');
assert.equal(await refusal(user, 'restart_agent', { name: 'nobody' }), 'unknown_agent');
assert.equal(await refusal(user, 'start_agent', { name: '' }), 'invalid_argument');

assert.deepEqual((await call(user, 'list_stdio_servers')).servers, []);
assert.equal((await call(user, 'restart_stdio_servers', { dryRun: true })).status, 'dry_run');

console.log(`  protocol ${user.transport.protocolVersion}`);
await Promise.all([user.close(), agent.close()]);
