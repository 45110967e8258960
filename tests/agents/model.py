"""A stand-in for the models behind agents: just enough of the Anthropic messages, OpenAI responses and Gemini APIs, on
loopback.

What it does is written in the prompt. Each `CALL tool {json}` is one tool call, in that order; a tool is named by the
end of its name. When all of them have their results, or when no prompt has any, it ends its turn.
"""

import json
import queue
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CALL = re.compile(r"\bCALL (\w+) (?=\{)")


@dataclass
class Turn:
    """One request to the model, and what it answered."""

    model: str
    tools: list[str]
    said: str = ""
    called: str | None = None
    prompt: str = ""
    results: list[str] = field(default_factory=list)


class StandInModel:
    """Serves on a free port of its own while the `with` block runs.

    `turns` has a Turn for each request. A model answers nothing before it is woken by its name.
    """

    def __enter__(self):
        self.turns = queue.Queue()
        self.awake = set()
        self.woken = threading.Condition()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Messages)
        self.server.model = self
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def wake(self, name):
        with self.woken:
            self.awake.add(name)
            self.woken.notify_all()

    def take(self, turn):
        """Keep the turn, and hold its answer back while its model sleeps."""
        self.turns.put(turn)
        with self.woken:
            self.woken.wait_for(lambda: turn.model in self.awake)

    def results(self, name, count, seconds):
        """The results of so many calls of a model, once it is told the last of them."""
        while True:
            turn = self.turns.get(timeout=seconds)
            if turn.model == name and len(turn.results) == count:
                return turn.results


class Messages(BaseHTTPRequestHandler):
    """The endpoints that agents ask for; everything else is not found."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path = self.path.split("?")[0]
        if path == "/v1/messages":
            turn, block = decide(body["model"], anthropic_tools(body), anthropic_parts(body))
            self.server.model.take(turn)
            whole = message(body["model"], block)
            self.stream(events(whole)) if body.get("stream") else self.answer(whole)
        elif path == "/v1/responses":
            turn, block = decide(body["model"], responses_tools(body), responses_parts(body))
            self.server.model.take(turn)
            self.stream(response_events(body["model"], block))
        elif path.endswith(("generateContent", "GenerateContent")):
            name = path.rpartition("/")[2].partition(":")[0]
            turn, block = decide(name, gemini_tools(body), gemini_parts(body))
            # What it asks for without tools is about the conversation, and no part of it.
            if turn.tools:
                self.server.model.take(turn)
            whole = gemini_answer(block)
            self.stream([whole]) if "stream" in path else self.answer(whole)
        elif path == "/v1/messages/count_tokens":
            self.answer({"input_tokens": 10})
        else:
            self.missing()

    def do_GET(self):
        self.missing()

    do_HEAD = do_GET

    def answer(self, value, status=200):
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def missing(self):
        self.answer({"type": "error", "error": {"type": "not_found_error", "message": "not found"}}, 404)

    def stream(self, events):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for event in events:
            name = f"event: {event['type']}\n" if "type" in event else ""
            self.wfile.write(f"{name}data: {json.dumps(event)}\n\n".encode())
        self.close_connection = True

    def log_message(self, *_):
        pass


def decide(model, tools, parts):
    """What comes next in the script of the newest prompt that has one: what is said, or called with what.

    `parts` are what the client sent, the newest first: ("result", text) of tools, ("text", text) of prompts.
    """
    turn = Turn(model, tools)
    script = []
    # Messages of the client itself may follow a tool's result, so the script is not always in the last one.
    for what, text in parts:
        if what == "result":
            turn.results.insert(0, text)
        script = calls(text) if what == "text" else []
        if script:
            turn.prompt = text
            break
    if len(turn.results) < len(script):
        ending, arguments = script[len(turn.results)]
        turn.called = next((name for name in turn.tools if name.endswith(ending)), None)
        name = turn.called
        if not name and "tool_call" in turn.tools:
            # A client that tells of its servers' tools in prose, and has one tool to call any of them.
            turn.called = f"mcp__restart__{ending}"
            name, arguments = "tool_call", {"name": turn.called, "arguments": arguments}
        if name:
            return turn, {"type": "tool_use", "id": f"toolu_{id(turn):x}", "name": name, "input": arguments}
        turn.said = f"There is no tool {ending}."
    else:
        turn.said = "Done."
    return turn, {"type": "text", "text": turn.said}


def anthropic_tools(body):
    return [tool["name"] for tool in body.get("tools", [])]


def anthropic_parts(body):
    for sender, block in reversed([pair for sent in body["messages"] for pair in blocks(sent)]):
        if sender == "user" and block["type"] == "tool_result":
            yield "result", flat(block.get("content"))
        elif sender == "user":
            yield "text", block.get("text", "")


def responses_tools(body):
    """Names of functions, those of a namespace as `namespace name`."""
    offered = [*body.get("tools", [])]
    offered += [tool for item in body["input"] for tool in item.get("tools", [])]
    for tool in offered:
        if tool.get("type") == "namespace":
            offered += [inner | {"name": f"{tool['name']} {inner['name']}"} for inner in tool["tools"]]
    return [tool["name"] for tool in offered if tool.get("name") and tool.get("type") != "namespace"]


def responses_parts(body):
    for item in reversed(body["input"]):
        if item.get("type", "").endswith("call_output"):
            yield "result", flat(item.get("output"))
        elif item.get("role") == "user":
            yield "text", flat(item.get("content"))


def gemini_tools(body):
    return [function["name"] for tool in body.get("tools", []) for function in tool.get("functionDeclarations", [])]


def gemini_parts(body):
    for part in reversed([part for sent in body["contents"] if sent["role"] == "user" for part in sent["parts"]]):
        if "functionResponse" in part:
            yield "result", part["functionResponse"]["response"].get("output", "")
        else:
            yield "text", part.get("text", "")


def calls(text):
    """The calls that a prompt asks for: ends of tools' names, and arguments, which may speak of calls themselves."""
    found, end = [], 0
    while call := CALL.search(text, end):
        arguments, end = json.JSONDecoder().raw_decode(text, call.end())
        found.append((call[1], arguments))
    return found


def blocks(sent):
    content = sent["content"]
    content = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [(sent["role"], block) for block in content]


def flat(content):
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content or [])


def message(model, block):
    stop = "tool_use" if block["type"] == "tool_use" else "end_turn"
    usage = {"input_tokens": 10, "output_tokens": 5}
    return {"id": f"msg_{id(block):x}", "type": "message", "role": "assistant", "model": model, "content": [block],
            "stop_reason": stop, "stop_sequence": None, "usage": usage}  # fmt: skip


def events(whole):
    """A message as the events of a stream."""
    [block] = whole["content"]
    if block["type"] == "tool_use":
        empty = block | {"input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
    else:
        empty = block | {"text": ""}
        delta = {"type": "text_delta", "text": block["text"]}
    yield {"type": "message_start", "message": whole | {"content": [], "stop_reason": None}}
    yield {"type": "content_block_start", "index": 0, "content_block": empty}
    yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    yield {"type": "message_delta", "delta": {"stop_reason": whole["stop_reason"], "stop_sequence": None},
           "usage": whole["usage"]}  # fmt: skip
    yield {"type": "message_stop"}


def response_events(model, block):
    """A response as the events of a stream."""
    name = f"resp_{id(block):x}"
    if block["type"] == "tool_use":
        space, _, tool = block["name"].rpartition(" ")
        item = {"type": "function_call", "id": f"fc_{name}", "call_id": block["id"], "name": tool,
                "arguments": json.dumps(block["input"]), "status": "completed"}  # fmt: skip
        item |= {"namespace": space} if space else {}
    else:
        said = {"type": "output_text", "text": block["text"], "annotations": []}
        item = {"type": "message", "id": f"msg_{name}", "role": "assistant", "status": "completed", "content": [said]}
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    response = {"id": name, "object": "response", "created_at": 1, "model": model}
    yield {"type": "response.created", "response": response | {"status": "in_progress", "output": [], "usage": None}}
    yield {"type": "response.output_item.added", "output_index": 0, "item": item | {"status": "in_progress"}}
    yield {"type": "response.output_item.done", "output_index": 0, "item": item}
    yield {"type": "response.completed", "response": response | {"status": "completed", "output": [item], "usage": usage}}


def gemini_answer(block):
    """An answer, which is the one event of a stream too."""
    called = block["type"] == "tool_use"
    part = {"functionCall": {"name": block["name"], "args": block["input"]}} if called else {"text": block["text"]}
    candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
    return {"candidates": [candidate], "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}}
