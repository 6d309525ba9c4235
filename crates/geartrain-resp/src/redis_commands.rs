//! Redis commands that this server answers itself: connection, authentication, publish/subscribe, and what
//! client libraries ask before they start.

use bytes::Bytes;
use geartrain_core::{Call, Role};

use crate::channels::Kind;
use crate::connection::backend_error;
use crate::flush;
use crate::frame::{Output, Protocol};
use crate::front::Shared;
use crate::qless;
use crate::session::Session;
use crate::transaction::Transaction;

/// All commands and how many arguments they take, their name included; a negative number is the least. Calls
/// of the queue are among them.
const COMMANDS: [(&str, i64); 39] = [
    ("auth", -2),
    ("client", -2),
    ("command", -1),
    ("config", -2),
    ("dbsize", 1),
    ("discard", 1),
    ("echo", 2),
    ("eval", -3),
    ("eval_ro", -3),
    ("evalsha", -3),
    ("evalsha_ro", -3),
    ("exec", 1),
    ("exists", -2),
    ("fcall", -3),
    ("fcall_ro", -3),
    ("flushall", -1),
    ("flushdb", -1),
    ("function", -2),
    ("hello", -1),
    ("info", -1),
    ("keys", 2),
    ("multi", 1),
    ("ping", -1),
    ("psubscribe", -2),
    ("publish", 3),
    ("pubsub", -2),
    ("punsubscribe", -1),
    ("quit", -1),
    ("reset", 1),
    ("role", 1),
    ("script", -2),
    ("select", 2),
    ("subscribe", -2),
    ("time", 1),
    ("type", 2),
    ("unsubscribe", -1),
    ("unwatch", 1),
    ("zcard", 2),
    ("zscore", 3),
];

/// The beginning of channels that carry our own driver's messages.
const PRIVATE_CHANNELS: &[u8] = b"gt:";

/// The longest name of a channel or pattern. They are kept for as long as a connection is subscribed.
const CHANNEL_BYTES_MAX: usize = 4_096;

/// The version that client libraries see, and choose their commands by.
const REDIS_VERSION: &str = "7.0.0";

const NO_SCRIPT: &str = "NOSCRIPT No matching script. Please use EVAL.";
const NO_AUTH: &str = "NOAUTH Authentication required.";
const WRONG_PASS: &str = "WRONGPASS invalid username-password pair or user is disabled.";

/// Decodes `EVALSHA <sha> 0 <command> <now> …` and its variants.
pub(crate) fn call(request: &[Bytes], shared: &Shared) -> Result<(Call, qless::CallContext), String> {
    let [name, script, keys, arguments @ ..] = request else { return Err(wrong_number(&request[0])) };
    let by_sha = name[4..].first().is_some_and(|letter| letter.eq_ignore_ascii_case(&b's'));
    if by_sha && !shared.scripts.has(script) {
        return Err(NO_SCRIPT.to_owned());
    }
    let count = std::str::from_utf8(keys).ok().and_then(|keys| keys.parse::<i64>().ok());
    match count {
        None => return Err("ERR value is not an integer or out of range".to_owned()),
        Some(count) if count < 0 => return Err("ERR Number of keys can't be negative".to_owned()),
        Some(count) if usize::try_from(count).is_ok_and(|count| count > arguments.len()) => {
            return Err("ERR Number of keys can't be greater than number of args".to_owned());
        }
        Some(_) => {}
    }
    if !by_sha {
        shared.scripts.load(script);
    }
    if count != Some(0) {
        return Err(qless::error("No Keys should be provided"));
    }
    qless::decode(arguments).map_err(|complaint| qless::error(&complaint))
}

/// Whether a command is known and has the right number of arguments; the error reply if not.
pub(crate) fn check(request: &[Bytes]) -> Result<(), String> {
    match COMMANDS.iter().find(|(word, _)| is(&request[0], word)) {
        Some((_, arity)) => {
            let (given, wanted) = (request.len() as u64, arity.unsigned_abs());
            let fits = if *arity < 0 { given >= wanted } else { given == wanted };
            if fits { Ok(()) } else { Err(wrong_number(&request[0])) }
        }
        None if is(&request[0], "watch") => {
            Err("ERR geartrain does not know the command 'WATCH': there are \
             no keys to watch, and MULTI and EXEC work without it"
                .to_owned())
        }
        None => Err(format!(
            "ERR geartrain does not know the command '{}': it is a job queue that answers the Qless API, as scripts are called, \
             and what Redis libraries ask when they connect",
            shown(&request[0])
        )),
    }
}

fn wrong_number(name: &[u8]) -> String {
    format!("ERR wrong number of arguments for '{}' command", shown(name).to_ascii_lowercase())
}

fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(128)]).into_owned()
}

/// Executes one Redis command.
pub(crate) async fn answer(request: &[Bytes], session: &mut Session, shared: &Shared, out: &mut Output) {
    let name = request[0].to_ascii_lowercase();
    let arguments = &request[1..];
    if !session.is_authenticated() && !matches!(&name[..], b"auth" | b"hello" | b"quit" | b"reset") {
        return out.error(NO_AUTH);
    }
    let listening: &[&[u8]] =
        &[b"subscribe", b"unsubscribe", b"psubscribe", b"punsubscribe", b"ping", b"quit", b"reset"];
    if session.is_subscriber_only() && !listening.contains(&&name[..]) {
        return out.error(&format!(
            "ERR Can't execute '{}': only (P)SUBSCRIBE / (P)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context",
            shown(&name)
        ));
    }
    if let Err(error) = check(request) {
        return out.error(&error);
    }
    match (&name[..], arguments) {
        (b"ping", []) if session.is_subscriber_only() => {
            out.array(2);
            out.bulk("pong");
            out.bulk("");
        }
        (b"ping", [text]) if session.is_subscriber_only() => {
            out.array(2);
            out.bulk("pong");
            out.bulk(text);
        }
        (b"ping", []) => out.simple("PONG"),
        (b"ping" | b"echo", [text]) => out.bulk(text),
        (b"quit", _) => {
            session.closing = true;
            out.simple("OK");
        }
        (b"reset", []) => reset(session, out),
        (b"hello", _) => hello(arguments, session, shared, out).await,
        (b"auth", [password]) => auth(b"default", password, session, shared, out).await,
        (b"auth", [user, password]) => auth(user, password, session, shared, out).await,
        (b"select", [database]) if database == "0" => out.simple("OK"),
        (b"select", [_]) => out.error(
            "ERR DB index is out of range: a geartrain server has database 0 only; start another server for another queue system",
        ),
        (b"multi", []) => {
            session.transaction = Some(Transaction::default());
            out.simple("OK");
        }
        (b"exec", []) => out.error("ERR EXEC without MULTI"),
        (b"discard", []) => out.error("ERR DISCARD without MULTI"),
        (b"unwatch", []) => out.simple("OK"),
        (b"client", [word, rest @ ..]) => client(word, rest, session, shared, out),
        (b"command", _) => command(arguments, out),
        (b"config", [word, patterns @ ..]) if is(word, "get") && !patterns.is_empty() => out.map(0),
        (b"info", _) => out.bulk(info(shared)),
        (b"time", []) => {
            let now = shared.clock.now().get();
            out.array(2);
            out.bulk(format!("{:.0}", now.floor()));
            out.bulk(format!("{:.0}", ((now - now.floor()) * 1e6).floor()));
        }
        (b"role", []) => {
            out.array(3);
            out.bulk("master");
            out.integer(0);
            out.array(0);
        }
        (b"function", [word, rest @ ..]) => function(word, rest, out),
        (b"script", [word, rest @ ..]) => script(word, rest, session, shared, out),
        (b"subscribe", [_, ..]) => subscribe(Kind::Channel, arguments, session, out).await,
        (b"psubscribe", [_, ..]) => subscribe(Kind::Pattern, arguments, session, out).await,
        (b"unsubscribe", _) => unsubscribe(Kind::Channel, arguments, session, shared, out).await,
        (b"punsubscribe", _) => unsubscribe(Kind::Pattern, arguments, session, shared, out).await,
        (b"pubsub", [word, rest @ ..]) => pubsub(word, rest, shared, out),
        (b"publish", [channel, text]) => publish(channel, text, session, shared, out).await,
        (b"dbsize", []) => match flush::count(&**session.backend()).await {
            Ok(count) => out.integer(i64::try_from(count).unwrap_or(i64::MAX)),
            Err(error) => out.error(&backend_error(&error)),
        },
        (b"keys", [pattern]) if shared.options.allow_flush => match flush::keys(&**session.backend(), pattern).await {
            Ok(keys) => {
                out.array(keys.len());
                keys.iter().for_each(|key| out.bulk(key));
            }
            Err(error) => out.error(&backend_error(&error)),
        },
        (b"flushdb" | b"flushall", [] | [_]) if shared.options.allow_flush => {
            let flushed = flush::flush(&**session.backend()).await;
            shared.channels.flush().await;
            match flushed {
                Ok(()) => out.simple("OK"),
                Err(error) => out.error(&backend_error(&error)),
            }
        }
        (b"keys" | b"flushdb" | b"flushall", _) if !shared.options.allow_flush => {
            out.error(&flush::flush_refusal(&shown(&name).to_ascii_uppercase()));
        }
        _ => out.error(&wrong_number(&name)),
    }
}

fn is(argument: &[u8], word: &str) -> bool {
    argument.eq_ignore_ascii_case(word.as_bytes())
}

fn reset(session: &mut Session, out: &mut Output) {
    session.transaction = None;
    session.unsubscribe_all();
    session.write_messages(out);
    session.resp3 = false;
    session.rename(String::new());
    session.reset_identity();
    out.protocol = Protocol::Two;
    out.simple("RESET");
}

async fn auth(user: &[u8], password: &[u8], session: &mut Session, shared: &Shared, out: &mut Output) {
    if !shared.options.access.is_required() {
        return out.error("ERR AUTH is not needed: no password or key is set here");
    }
    match session.authenticate(user, password).await {
        Some(identity) => {
            session.set_identity(Some(identity));
            out.simple("OK");
        }
        None => out.error(WRONG_PASS),
    }
}

async fn hello(arguments: &[Bytes], session: &mut Session, shared: &Shared, out: &mut Output) {
    let mut protocol = out.protocol;
    let mut rest = arguments;
    if let [version, more @ ..] = arguments {
        protocol = match &version[..] {
            b"2" => Protocol::Two,
            b"3" => Protocol::Three,
            _ => return out.error("NOPROTO unsupported protocol version"),
        };
        rest = more;
    }
    let (mut identity, mut name) = (session.identity().cloned(), None);
    loop {
        match rest {
            [] => break,
            [word, user, password, more @ ..] if is(word, "auth") => {
                if shared.options.access.is_required() {
                    identity = session.authenticate(user, password).await;
                    if identity.is_none() {
                        return out.error(WRONG_PASS);
                    }
                }
                rest = more;
            }
            [word, given, more @ ..] if is(word, "setname") => {
                name = Some(given);
                rest = more;
            }
            _ => return out.error("ERR Syntax error in HELLO"),
        }
    }
    if identity.is_none() {
        return out.error("NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time");
    }
    if let Some(name) = name {
        match client_name(name) {
            Ok(name) => session.rename(name),
            Err(error) => return out.error(error),
        }
    }
    session.set_identity(identity);
    session.resp3 = protocol == Protocol::Three;
    out.protocol = protocol;
    out.map(7);
    out.bulk("server");
    out.bulk("redis");
    out.bulk("version");
    out.bulk(REDIS_VERSION);
    out.bulk("proto");
    out.integer(if session.resp3 { 3 } else { 2 });
    out.bulk("id");
    out.integer(i64::try_from(session.number).unwrap_or(i64::MAX));
    out.bulk("mode");
    out.bulk("standalone");
    out.bulk("role");
    out.bulk("master");
    out.bulk("modules");
    out.array(0);
}

fn client_name(name: &[u8]) -> Result<String, &'static str> {
    const NAME_BYTES_MAX: usize = 512;
    match std::str::from_utf8(name) {
        Ok(name) if name.len() <= NAME_BYTES_MAX && name.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Ok(name.to_owned())
        }
        _ => Err("ERR a client's name has at most 512 bytes, and no blanks or special characters"),
    }
}

fn client(word: &[u8], rest: &[Bytes], session: &mut Session, shared: &Shared, out: &mut Output) {
    let line = |number: &u64, (address, name): &(String, String)| {
        format!("id={number} addr={address} name={name} db=0\n")
    };
    match (&word.to_ascii_lowercase()[..], rest) {
        (b"setname", [name]) => match client_name(name) {
            Ok(name) => {
                session.rename(name);
                out.simple("OK");
            }
            Err(error) => out.error(error),
        },
        (b"getname", []) => match session.name() {
            name if name.is_empty() => out.nil(),
            name => out.bulk(name),
        },
        (b"setinfo", [_, _]) | (b"no-evict" | b"no-touch", [_]) => out.simple("OK"),
        (b"id", []) => out.integer(i64::try_from(session.number).unwrap_or(i64::MAX)),
        (b"info", []) => {
            let peers = shared.peers();
            out.bulk(peers.get(&session.number).map(|peer| line(&session.number, peer)).unwrap_or_default());
        }
        (b"list", []) => out.bulk(shared.peers().iter().map(|(number, peer)| line(number, peer)).collect::<String>()),
        _ => out.error(&format!(
            "ERR geartrain does not know CLIENT {} with {} arguments: it knows ID, INFO, LIST, GETNAME, SETNAME, SETINFO, NO-EVICT and NO-TOUCH",
            shown(word),
            rest.len()
        )),
    }
}

fn command(arguments: &[Bytes], out: &mut Output) {
    let describe = |out: &mut Output, (word, arity): (&str, i64)| {
        out.array(6);
        out.bulk(word);
        out.integer(arity);
        out.array(0);
        (0..3).for_each(|_| out.integer(0));
    };
    match arguments {
        [] => {
            out.array(COMMANDS.len());
            COMMANDS.iter().for_each(|command| describe(out, *command));
        }
        [word] if is(word, "count") => out.integer(COMMANDS.len() as i64),
        [word] if is(word, "list") => {
            out.array(COMMANDS.len());
            COMMANDS.iter().for_each(|(word, _)| out.bulk(word));
        }
        [word, ..] if is(word, "docs") => out.map(0),
        [word, names @ ..] if is(word, "info") => {
            out.array(names.len());
            for name in names {
                match COMMANDS.iter().find(|(word, _)| is(name, word)) {
                    Some(command) => describe(out, *command),
                    None => out.nil(),
                }
            }
        }
        _ => out
            .error("ERR geartrain knows COMMAND, COMMAND COUNT, COMMAND LIST, COMMAND INFO and COMMAND DOCS"),
    }
}

fn info(shared: &Shared) -> String {
    use std::sync::atomic::Ordering::Relaxed;
    let sync_mode = shared.options.sync_mode.as_ref();
    let sync_mode = sync_mode.map(|mode| format!("geartrain_sync:{mode}\r\n")).unwrap_or_default();
    let uptime = (shared.clock.now() - shared.started).get().max(0.0);
    format!(
        "# Server\r\nredis_version:{REDIS_VERSION}\r\nredis_mode:standalone\r\ngeartrain_version:{}\r\n{}process_id:{}\r\n\
         uptime_in_seconds:{uptime:.0}\r\n\r\n# Clients\r\nconnected_clients:{}\r\n\r\n\
         # Stats\r\ntotal_connections_received:{}\r\ntotal_queue_calls:{}\r\n\
         pubsub_channels:{}\r\npubsub_patterns:{}\r\n\r\n# Replication\r\nrole:master\r\nconnected_slaves:0\r\n\r\n\
         # Cluster\r\ncluster_enabled:0\r\n",
        env!("CARGO_PKG_VERSION"),
        sync_mode,
        std::process::id(),
        shared.peers().len(),
        shared.connections(),
        shared.calls.load(Relaxed),
        shared.channels.channel_names(None).len(),
        shared.channels.pattern_count(),
    )
}

fn script(word: &[u8], rest: &[Bytes], session: &Session, shared: &Shared, out: &mut Output) {
    // The cache is that of all clients.
    if is(word, "flush")
        && let Some(refusal) = session.refusal(Role::Operator, "script flush")
    {
        return out.error(&qless::refused(&refusal));
    }
    match (&word.to_ascii_lowercase()[..], rest) {
        (b"load", [body]) => out.bulk(shared.scripts.load(body)),
        (b"exists", [_, ..]) => {
            out.array(rest.len());
            rest.iter().for_each(|sha| out.integer(i64::from(shared.scripts.has(sha))));
        }
        (b"flush", []) => {
            shared.scripts.flush();
            out.simple("OK");
        }
        (b"flush", [how]) if is(how, "sync") || is(how, "async") => {
            shared.scripts.flush();
            out.simple("OK");
        }
        (b"kill", []) => out.error("NOTBUSY No scripts in execution right now."),
        _ => out.error("ERR geartrain knows SCRIPT LOAD, SCRIPT EXISTS, SCRIPT FLUSH and SCRIPT KILL"),
    }
}

/// Libraries are accepted and named, and never run.
fn function(word: &[u8], rest: &[Bytes], out: &mut Output) {
    match (&word.to_ascii_lowercase()[..], rest) {
        (b"load", [body]) => load(body, out),
        (b"load", [how, body]) if is(how, "replace") => load(body, out),
        (b"list", _) => out.array(0),
        (b"dump", []) => out.nil(),
        (b"flush", [] | [_]) | (b"delete", [_]) => out.simple("OK"),
        (b"stats", []) => {
            out.map(2);
            out.bulk("running_script");
            out.nil();
            out.bulk("engines");
            out.map(0);
        }
        _ => {
            out.error("ERR geartrain knows FUNCTION LOAD, LIST, DUMP, DELETE, FLUSH and STATS, and runs none")
        }
    }
}

/// The library's name is in the first line of its text.
fn load(body: &[u8], out: &mut Output) {
    let first = body.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let words = first.strip_prefix(b"#!").unwrap_or_default().split(u8::is_ascii_whitespace);
    match words.filter_map(|word| word.strip_prefix(b"name=")).find(|name| !name.is_empty()) {
        Some(name) => out.bulk(name),
        None => out.error("ERR a library begins with a line like #!lua name=<name>"),
    }
}

async fn subscribe(kind: Kind, names: &[Bytes], session: &mut Session, out: &mut Output) {
    let word = if kind == Kind::Channel { "subscribe" } else { "psubscribe" };
    if names.iter().any(|name| name.len() > CHANNEL_BYTES_MAX) {
        return out.error(&format!("ERR a channel or pattern has at most {CHANNEL_BYTES_MAX} bytes"));
    }
    match session.subscribe(kind, names).await {
        Ok(counts) => {
            names.iter().zip(&counts).for_each(|(name, count)| confirm(word, Some(name), *count, out));
            if counts.len() < names.len() {
                out.error("ERR too many subscriptions: a connection may have 10000");
            }
        }
        Err(error) => out.error(&backend_error(&error)),
    }
}

async fn unsubscribe(kind: Kind, names: &[Bytes], session: &mut Session, shared: &Shared, out: &mut Output) {
    let word = if kind == Kind::Channel { "unsubscribe" } else { "punsubscribe" };
    let all = session.subscribed(kind);
    let names = if names.is_empty() { &all[..] } else { names };
    if names.is_empty() {
        return confirm(word, None, session.subscriptions(), out);
    }
    if !all.is_empty() {
        // Also calls that another server answered have published before.
        shared.channels.flush().await;
    }
    for name in names {
        session.unsubscribe(kind, name);
        // Before the confirmation: in RESP2, a client takes what comes after the last one as a reply.
        session.write_messages(out);
        confirm(word, Some(name), session.subscriptions(), out);
    }
}

fn confirm(word: &str, name: Option<&Bytes>, count: usize, out: &mut Output) {
    out.push(3);
    out.bulk(word);
    match name {
        Some(name) => out.bulk(name),
        None => out.nil(),
    }
    out.integer(count as i64);
}

fn pubsub(word: &[u8], rest: &[Bytes], shared: &Shared, out: &mut Output) {
    match (&word.to_ascii_lowercase()[..], rest) {
        (b"channels", [] | [_]) => {
            let names = shared.channels.channel_names(rest.first().map(|pattern| &pattern[..]));
            out.array(names.len());
            names.iter().for_each(|name| out.bulk(name));
        }
        (b"numsub", _) => {
            out.array(2 * rest.len());
            for name in rest {
                out.bulk(name);
                out.integer(shared.channels.subscriber_count(name) as i64);
            }
        }
        (b"numpat", []) => out.integer(shared.channels.pattern_count() as i64),
        _ => out.error("ERR geartrain knows PUBSUB CHANNELS, PUBSUB NUMSUB and PUBSUB NUMPAT"),
    }
}

/// Sends a message to the subscribers of this server, and through the backend to those of other processes.
/// Ruby's workers end their listeners so.
async fn publish(channel: &Bytes, text: &Bytes, session: &Session, shared: &Shared, out: &mut Output) {
    if channel.starts_with(PRIVATE_CHANNELS) {
        return out.error("ERR channels that begin with gt: are geartrain's own");
    }
    if let Some(refusal) = session.refusal(Role::Operator, "publish") {
        return out.error(&qless::refused(&refusal));
    }
    match shared.channels.send(channel, text).await {
        Ok(receivers) => out.integer(i64::try_from(receivers).unwrap_or(i64::MAX)),
        Err(error) => out.error(&backend_error(&error)),
    }
}
