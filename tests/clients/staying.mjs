// A client of the TypeScript SDK that does not start its stdio server again, as Claude Code and Codex do not.
//
// usage: staying.mjs COMMAND…   the server; `ready` and `closed` are told on standard output
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';

const [command, ...args] = process.argv.slice(2);
const client = new Client({ name: 'staying', version: '1' });
client.onclose = () => console.log('closed');
await client.connect(new StdioClientTransport({ command, args, stderr: 'ignore' }));
await client.listTools();
console.log('ready');
// Lives on until it is killed.
setInterval(() => {}, 1 << 30);
