//! Which commands are refused, and which only look like it.

use super::judge;
use super::protected::{Process, Protected};
use mcp_restart_protocol::answer::Owner;
use proptest::prelude::*;

/// A daemon, its bridge, claude with its shim, and a gemini that is a script of node.
fn protected() -> Protected {
    let process = |pid, names: &[&str], command: &str, owner: Owner| Process {
        pid: Some(pid),
        parent: Some(pid - 1),
        group: Some(pid),
        names: names.iter().map(|name| (*name).to_owned()).collect(),
        command: command.to_owned(),
        owner,
    };
    let claude = || Owner::Agent("claude".into());
    let gemini = || Owner::Agent("gemini".into());
    Protected {
        processes: vec![
            process(4100, &["mcp-restartd"], "/usr/bin/mcp-restartd --config /home/a/c.json", Owner::Daemon),
            process(
                4101,
                &["mcp-restart-htt", "mcp-restart-http"],
                "/usr/bin/mcp-restart-http",
                Owner::Bridge,
            ),
            process(4200, &["mcp-restart: cl"], "mcp-restart: claude", claude()),
            process(4201, &["claude", "claude.exe"], "claude --mcp-config=/s/claude.mcp.json", claude()),
            process(4301, &["node"], "node /usr/bin/gemini --session-id 1", gemini()),
        ],
        port: Some(4310),
        own: Some("claude".to_owned()),
    }
}

/// Commands, and what they would hit.
const REFUSED: &[(&str, &str)] = &[
    ("pkill -f claude", "claude"),
    ("pkill claude", "claude"),
    ("pkill -9 -f 'claude --mcp'", "claude"),
    ("killall node", "gemini"),
    ("killall -9 node", "gemini"),
    ("killall -r 'no.e'", "gemini"),
    ("kill 4100", "daemon"),
    ("kill -9 4100", "daemon"),
    ("kill -s KILL 4201", "claude"),
    ("kill -TERM -- -4201", "claude"),
    ("kill -9 -1", "daemon bridge claude gemini"),
    ("kill -1 4100", "daemon"),
    ("kill $(pgrep -f claude)", "claude"),
    ("kill -9 `pidof node`", "gemini"),
    ("pgrep -f claude | xargs kill -9", "claude"),
    ("pgrep -f claude | xargs -r -n 1 sudo kill", "claude"),
    ("ps aux | grep [c]laude | awk '{print $2}' | xargs kill", "claude"),
    ("ps aux | grep -v grep | awk '/gemini/ {print $2}' | xargs kill", "gemini"),
    ("ps -ef | grep 'claude\\|gemini' | while read a b c; do kill $b; done", "claude gemini"),
    ("PID=$(pgrep claude); kill $PID", "claude"),
    ("for p in $(pgrep node); do kill -9 \"$p\"; done", "gemini"),
    ("cd /tmp && pkill -f mcp-restartd", "daemon"),
    ("true; pkill -f 'mcp-restart'", "daemon bridge claude"),
    ("echo hi || pkill node &", "gemini"),
    ("sudo pkill -f mcp-restart-http", "bridge"),
    ("sudo -u me env A=1 nohup timeout -k 1 5 pkill claude", "claude"),
    ("sh -c 'pkill claude'", "claude"),
    ("bash -lc \"kill 4201\"", "claude"),
    ("bash -c 'sh -c \"killall node\"'", "gemini"),
    ("eval 'pkill claude'", "claude"),
    ("/usr/bin/pkill claude", "claude"),
    ("\\pkill claude", "claude"),
    ("'pk'\"ill\" cl\\aude", "claude"),
    ("p=pkill; $p claude", "claude"),
    ("x=claude; pkill -f \"$x\"", "claude"),
    ("bash <<E\npkill claude\nE", "claude"),
    ("echo 'pkill claude' | sh", "claude"),
    ("f() { pkill claude; }; f", "claude"),
    ("if true; then pkill claude; fi", "claude"),
    ("(pkill claude)", "claude"),
    ("echo \"$(pkill claude)\"", "claude"),
    ("find . -name x -exec pkill claude \\;", "claude"),
    ("python3 -c 'import os; os.system(\"pkill -f claude\")'", "claude"),
    ("python3 -c 'import os; os.kill(4201, 9)'", "claude"),
    ("node -e 'process.kill(4100)'", "daemon"),
    ("fuser -k 4310/tcp", "bridge"),
    ("npx kill-port 4310", "bridge"),
    ("lsof -ti :4310 | xargs kill -9", "bridge"),
    ("kill -9 $(lsof -t -i tcp:4310)", "bridge"),
    ("kill $(cat ~/.local/state/mcp-restart/mcp-restartd.lock)", "daemon"),
    ("kill $(<state/mcp-restartd.lock)", "daemon"),
    ("pkill -F state/mcp-restartd.lock", "daemon"),
    ("pkill -u me", "daemon bridge claude gemini"),
    ("pkill -P 4200", "claude"),
    ("pkill -v vim", "daemon bridge claude gemini"),
    ("pkill -x CLAUDE -i", "claude"),
    ("killall -u me", "daemon bridge claude gemini"),
    ("systemctl --user kill mcp-restartd", "daemon"),
    ("systemctl --user restart mcp-restartd.service", "daemon"),
    ("mcp-restartctl list --json | jq '.agents[].pid' | xargs kill", "daemon bridge claude gemini"),
    // Quotes, escapes, variables and what is printed.
    ("$'pkill' claude", "claude"),
    ("$'\\x70kill' claude", "claude"),
    ("p'k'i\"l\"l -f c\\laude", "claude"),
    ("c='pkill -f claude'; $c", "claude"),
    ("export N=claude; pkill \"$N\"", "claude"),
    ("pids='4100 4201'; kill $pids", "daemon claude"),
    ("pids=(4201 4301); kill \"${pids[@]}\"", "claude gemini"),
    ("kill ${PID:-4201}", "claude"),
    ("$(echo pkill) claude", "claude"),
    ("\"$(command -v pkill)\" claude", "claude"),
    ("alias k='pkill -f'; k claude", "claude"),
    // Loops, functions and what is read.
    ("for n in claude gemini; do pkill -f \"$n\"; done", "claude gemini"),
    ("for p in 4201 4301; do kill -9 $p; done", "claude gemini"),
    ("k() { pkill -f \"$1\"; }; k claude", "claude"),
    ("function k { kill -9 \"$@\"; }; k 4201", "claude"),
    ("set -- 4201; kill $1", "claude"),
    ("bash -c 'kill -9 \"$1\"' _ 4201", "claude"),
    ("while read n; do pkill $n; done <<< claude", "claude"),
    ("read p < <(pgrep claude); kill $p", "claude"),
    ("mapfile -t a < <(pgrep claude); kill \"${a[@]}\"", "claude"),
    ("echo 4201 | xargs kill", "claude"),
    ("printf '%s\\n' claude gemini | xargs -n1 pkill -f", "claude gemini"),
    ("xargs kill <<< 4201", "claude"),
    ("pgrep claude | xargs -I{} sh -c 'kill -9 {}'", "claude"),
    ("pgrep claude | parallel 'kill {}'", "claude"),
    ("pgrep claude > /tmp/p; kill $(cat /tmp/p)", "claude"),
    // Commands that run commands.
    ("env -i pkill claude", "claude"),
    ("env -S 'pkill claude'", "claude"),
    ("nohup setsid timeout -s KILL 5 pkill claude &", "claude"),
    ("sudo -n -- pkill claude", "claude"),
    ("sudo bash -c 'pkill claude'", "claude"),
    ("su - me -c 'pkill claude'", "claude"),
    ("runuser -u me -- pkill claude", "claude"),
    ("doas pkill claude", "claude"),
    ("busybox pkill claude", "claude"),
    ("systemd-run --user --scope pkill claude", "claude"),
    ("flock /tmp/l -c 'pkill claude'", "claude"),
    ("script -qc 'pkill claude' /dev/null", "claude"),
    ("watch -n 1 pkill claude", "claude"),
    ("time -p pkill claude", "claude"),
    ("exec pkill claude", "claude"),
    ("find /tmp -maxdepth 0 -exec true \\; -exec kill 4201 +", "claude"),
    ("npm exec -y kill-port 4310", "bridge"),
    // Scripts that are handed over.
    ("bash -s <<'E'\npkill claude\nE", "claude"),
    ("cat <<E | sh\npkill claude\nE", "claude"),
    ("bash <(echo pkill claude)", "claude"),
    ("source /dev/stdin <<< 'pkill claude'", "claude"),
    ("echo cGtpbGwgY2xhdWRl | base64 -d | sh", "claude"),
    ("eval \"$(echo cGtpbGwgY2xhdWRl | base64 --decode)\"", "claude"),
    ("cat > x.sh <<'E'\npkill claude\nE\nbash x.sh", "claude"),
    ("echo 'kill 4201' > ./x.sh && chmod +x x.sh && ./x.sh", "claude"),
    ("echo 'pkill claude' | at now", "claude"),
    ("ps aux | awk '/claude/ {print \"kill \" $2}' | sh", "claude"),
    ("ps aux | awk '/claude/ {system(\"kill \" $2)}'", "claude"),
    // Other languages.
    ("python3 - <<'E'\nimport os\nos.system(\"pkill claude\")\nE", "claude"),
    ("python3 -c 'import subprocess; subprocess.run([\"pkill\", \"-f\", \"claude\"])'", "claude"),
    ("python3 -c 'import os; os.kill(-1, 9)'", "daemon bridge claude gemini"),
    ("python3 -c 'import os; os.killpg(4201, 9)'", "claude"),
    (
        "python3 -c 'import psutil\nfor p in psutil.process_iter():\n  if \"claude\" in p.name(): p.kill()'",
        "claude",
    ),
    ("cat > k.py <<'E'\nimport os\nos.kill(4201, 9)\nE\npython3 k.py", "claude"),
    ("perl -e 'kill 9, 4201'", "claude"),
    ("perl -e 'system(\"killall node\")'", "gemini"),
    ("ruby -e 'Process.kill(:TERM, 4201)'", "claude"),
    ("node -e \"require('child_process').execSync('pkill claude')\"", "claude"),
    ("awk 'BEGIN { system(\"pkill claude\") }'", "claude"),
    ("osascript -e 'do shell script \"pkill claude\"'", "claude"),
    // Whoever is found in other ways.
    ("kill -9 $PPID", "claude"),
    ("kill $(ps -o ppid= -p $$)", "claude"),
    ("kill -TERM -$(ps -o pgid= -p 4201 | tr -d ' ')", "claude"),
    ("kill $(ps -o pid= --ppid 4200)", "claude"),
    ("echo 4201 > p.pid; kill $(cat p.pid)", "claude"),
    ("tmux send-keys -t 1 'pkill claude' Enter", "claude"),
    ("kill -9 4201 > /dev/null 2>&1", "claude"),
    ("PID=$SAVED; PID=4201; kill $PID", "claude"),
    ("PID=$(cat x); PID=4201; kill $PID", "claude"),
    ("c=pkill; c+=' claude'; $c", "claude"),
    ("printf 'kill $1' > x.sh; sh x.sh 4201", "claude"),
    ("c=(pkill -f claude); \"${c[@]}\"", "claude"),
    ("kill -- -1", "daemon bridge claude gemini"),
    ("ps -u me -o pid= | xargs kill -9", "daemon bridge claude gemini"),
    ("ps aux | fgrep claude | awk '{print $2}' | xargs kill", "claude"),
    ("ps aux | awk '$11 == \"claude\" {print $2}' | xargs kill", "claude"),
    ("grep -l claude /proc/*/comm | cut -d/ -f3 | xargs kill", "claude"),
    ("fuser -k ~/.local/state/mcp-restart/mcp-restartd.sock", "daemon"),
    ("fuser -k /usr/bin/claude", "claude"),
    ("lsof -t /usr/bin/claude | xargs kill", "claude"),
    ("systemctl --user disable --now mcp-restartd", "daemon"),
    ("systemctl --user stop 'mcp-*'", "daemon"),
    ("service mcp-restartd stop", "daemon"),
    ("launchctl bootout gui/501/com.example.mcp-restartd", "daemon"),
    ("loginctl terminate-user me", "daemon bridge claude gemini"),
    ("pkill --signal KILL -x claude", "claude"),
    ("killall -m 'no.e'", "gemini"),
    ("skill -9 claude", "claude"),
];

/// Commands that only look like it, or hit others.
const PASSED: &[&str] = &[
    "",
    "ls -la",
    "kill 5555",
    "kill -9 5555 5556",
    "kill %1",
    "kill 0",
    "kill -0 4100",
    "kill -l",
    "kill -l 9",
    "kill $!",
    "kill $PID",
    "kill \"$(cat server.pid)\"",
    "pkill -f vite",
    "pkill -P $$",
    "pkill -0 claude",
    "pgrep -f claude",
    "pidof node",
    "ps aux | grep claude",
    "ps aux | grep claude | wc -l",
    "pgrep vite | xargs kill",
    "kill $(pgrep vite)",
    "ps aux | grep vite | awk '{print $2}' | xargs kill",
    "ps aux | grep -v claude | grep vite | xargs kill",
    "ps aux | grep node | grep vite | awk '{print $2}' | xargs kill",
    "killall vite",
    "killall -l",
    "killall nodes",
    "echo 'pkill -f claude'",
    "echo pkill claude",
    "git commit -m \"pkill -f claude no more\"",
    "grep -rn pkill src",
    "man pkill",
    "cat <<'E' > notes\npkill -f claude\nE",
    "# pkill -f claude",
    "ls # && pkill claude",
    "which pkill && command -v killall",
    "ssh host pkill node",
    "docker exec box pkill node",
    "docker kill claude",
    "claude --version",
    "mcp-restartctl stop claude",
    "mcp-restartctl restart --note 'pkill claude'",
    "systemctl --user status mcp-restartd",
    "systemctl --user stop other",
    "fuser 4310/tcp",
    "fuser -k 4311/tcp",
    "lsof -i :4310",
    "npx kill-port 3000",
    "python3 -c 'print(\"claude\")'",
    "python3 -c 'import os; os.kill(5555, 9)'",
    "node server.js 4100",
    "sleep 4100",
    "skillful claude",
    "./kill.sh claude",
    // Nobody is killed who was only looked at.
    "pgrep -f claude | head; kill $(cat vite.pid)",
    "ps aux | grep claude; kill $(lsof -ti :3000)",
    "claude --version & pgrep claude; kill $!",
    "pgrep -x node > /dev/null && kill $SERVER",
    "ps -p 4201 -o comm=; kill 5555",
    "ps --ppid $$ -o pid= | xargs kill",
    "ps aux | awk '$11 == \"vite\" {print $2}' | xargs kill",
    "ps aux | grep \"$NAME\" | awk '{print $2}' | xargs kill",
    "echo claude | xargs -n1 which",
    "echo claude 4201; kill 5555",
    // Values that are others.
    "for n in vite esbuild; do pkill -f $n; done; claude --version",
    "for n in claude gemini; do $n --version; done",
    "for n in 1 2 3; do pkill -f \"worker-$n\"; done",
    "for f in *.pid; do kill $(cat $f); done",
    "k() { kill \"$1\"; }; k 5555; echo 4201",
    "pkill -f \"node $SCRIPT\"",
    "pkill -f \"$PWD/server\"",
    "set -e; trap 'kill 0' EXIT",
    "trap 'kill $(jobs -p)' EXIT; node server.js & wait",
    "node server.js & PID=$!; sleep 1; kill $PID",
    "kill -s 0 4201 && echo alive",
    "pkill -P $PPID",
    // Texts that nobody runs.
    "git commit -m \"$(cat <<'E'\nThe guard refuses pkill -f claude\nE\n)\"",
    "cat > notes.md <<'E'\npkill claude\nE\nbash build.sh",
    "echo 'kill 4201' >> runbook.md",
    "python3 - <<'E'\nprint('pkill claude')\nE",
    "python3 -c 'open(\"x.md\", \"w\").write(\"kill 4201\")'",
    "sed -i 's/pkill claude/mcp-restartctl stop claude/' run.sh",
    "alias k=kubectl; k get pods",
    "rg 'kill -9 4201' docs",
    "bash -c 'echo \"$1\"' _ 'pkill claude'",
    "curl -s https://example.org/x.sh | sh",
    "echo aGVsbG8= | base64 -d",
    // Programs of others.
    "systemctl --user disable mcp-restartd",
    "systemctl --user restart 'web-*'",
    "launchctl list | grep mcp-restart",
    "service nginx restart",
    "tmux kill-server",
    "docker stop claude",
    "npm run kill-port 3000",
    "tmux send-keys -t dev C-c",
    "tmux send-keys -t dev 'echo pkill claude' Enter",
    "claude -p 'what does killall claude do?'",
    "python3 -c \"import re; print(re.findall('kill|pkill claude', open('x').read()))\"",
    "find . -name '*.pid' -exec sh -c 'kill $(cat \"$1\")' _ {} \\;",
    "curl -s http://127.0.0.1:4310/healthz; kill $(cat dev.pid)",
    "cat /proc/4201/status | grep VmRSS",
    "pkill -g 0",
    "npx -y kill-port 3000",
    "timeout --signal=KILL 5 claude --version",
    "nohup claude -p hello &",
    "fuser -k /dev/ttyUSB0",
    "lsof /usr/bin/claude",
    "perl -e 'print \"kill 4201\"'",
    "awk '/kill/ {print $2}' claude.log",
];

#[test]
fn what_hits_the_supervisor_or_an_agent_is_refused() {
    let shown = |owner: &Owner| match owner {
        Owner::Daemon => "daemon".to_owned(),
        Owner::Bridge => "bridge".to_owned(),
        Owner::Agent(name) => name.clone(),
    };
    let judged = REFUSED.iter().map(|(text, expected)| {
        let hits = judge(text, &protected()).map_or_else(Vec::new, |refusal| refusal.hits);
        (*text, *expected, hits.iter().map(shown).collect::<Vec<_>>().join(" "))
    });
    let wrong: Vec<_> = judged.filter(|(_, expected, hits)| expected != hits).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn what_hits_neither_passes() {
    let judged = PASSED.iter().map(|text| (*text, judge(text, &protected())));
    let wrong: Vec<_> = judged.filter(|(_, refusal)| refusal.is_some()).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_text_that_grows_without_end_is_judged_all_the_same() {
    let growing = format!("a=x; {} echo $a; pkill claude", "a=$a$a; ".repeat(100));
    assert!(judge(&growing, &protected()).is_some());
    let nested = format!("a='eval \"$a$a\"'; {}", "eval $a; ".repeat(20));
    judge(&nested, &protected());
    assert!(judge(&"bash -c '".repeat(100), &protected()).is_none());
    let runs_itself = format!("echo '{}' > x; sh x", "sh x; ".repeat(20));
    judge(&runs_itself, &protected());
    let doubles = format!("echo x > x; {}", "echo $(cat x) $(cat x) > x; ".repeat(100));
    judge(&doubles, &protected());
    let names: Vec<_> = (0..2_000).map(|number| format!("x{number}")).collect();
    let kills: Vec<_> = names.iter().map(|name| format!("pkill -f $w{name}")).collect();
    let crossed = format!("for w in {}; do {}; done", names.join(" "), kills.join("; "));
    judge(&crossed, &protected());
}

proptest! {
    #[test]
    fn a_kill_in_any_surroundings_is_found(
        before in prop::sample::select(vec!["", "true; ", "cd / && ", "A=1 ", "( ", "! ", "x | ", "{ ", "if true; then "]),
        wrapper in prop::sample::select(vec![
            "", "sudo -n ", "env -i A=1 ", "nohup ", "timeout -k 1 5 ", "exec ", "command ", "time -p ", "setsid -w ", "nice ", "xargs ",
            "A=1 ", "\\", ">/dev/null ", "doas -u me ", "systemd-run --user ",
        ]),
        after in prop::sample::select(vec!["", " ; true", " || true", " &", " 2>/dev/null", " | cat", " )", "\n}", " # so"]),
    ) {
        let text = format!("{before}{wrapper}pkill -f claude{after}");
        prop_assert!(judge(&text, &protected()).is_some(), "{}", text);
    }

    #[test]
    fn every_text_is_judged(text in "[a-z $(){}`'\"\\\\|&;<>#\n-]{0,60}") {
        judge(&text, &protected());
    }
}
