//! Another implementation of GearMonkey, written with plain Redis commands: it creates, waits for and runs jobs as
//! the published protocol says, without our scripts and keys.

use std::collections::HashMap;

use geartrain_testkit::peers::RedisServer;
use redis::{Connection, FromRedisValue, Value};

/// The due-job script of the protocol, to the byte, and its published digest.
const DUE_JOB: &str = "local item = redis.call('ZRANGEBYSCORE', KEYS[1], 0, ARGV[1], 'LIMIT', 0, 1); if (#item > 0) then redis.call('ZREM', KEYS[1], item[1]); return { KEYS[1],  item[1] }; end";
const DUE_JOB_SHA: &str = "5231827cd49b540660ef44969b38cc858f157824";

/// A client or a worker of the protocol, with a connection of its own.
pub(super) struct Peer {
    connection: Connection,
}

impl Peer {
    pub(super) fn of(redis: &RedisServer) -> Peer {
        Peer::at(redis.port())
    }

    pub(super) fn at(port: u16) -> Peer {
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap();
        Peer { connection: client.get_connection().unwrap() }
    }

    /// Sends a command of words.
    pub(super) fn say<T: FromRedisValue>(&mut self, words: &str) -> T {
        self.send(&words.split(' ').map(str::as_bytes).collect::<Vec<_>>())
    }

    /// Sends a command.
    pub(super) fn send<T: FromRedisValue>(&mut self, words: &[&[u8]]) -> T {
        let verb = std::str::from_utf8(words[0]).unwrap();
        redis::cmd(verb).arg(&words[1..]).query(&mut self.connection).unwrap()
    }

    /// `Client.run`, without blocking. `scheduled` is in Unix seconds.
    pub(super) fn run(&mut self, function: &str, input: &[u8], priority: &str, scheduled: i64) -> String {
        let id: i64 = self.say(&format!("INCR uid:{function}"));
        let id = id.to_string();
        let key = format!("job:{function}:{id}");
        self.send::<Value>(&[b"HMSET", key.as_bytes(), b"status", b"idle", b"input", input]);
        self.say::<i64>(&format!("PUBLISH channel:{function} create:{id}"));
        if priority == "scheduled" {
            self.say::<i64>(&format!("ZADD queue:{function}:scheduled {scheduled} {id}"));
        } else {
            self.say::<i64>(&format!("LPUSH queue:{function}:{priority} {id}"));
        }
        id
    }

    /// The second half of a blocking `Client.run`: whether the job has ended within some seconds.
    pub(super) fn block(&mut self, function: &str, id: &str, seconds: u32) -> bool {
        let said: Option<(String, String)> = self.say(&format!("BRPOP lock:{function}:{id} {seconds}"));
        said.is_some_and(|(_, said)| said == "OK")
    }

    /// The roll call of a client.
    pub(super) fn workers(&mut self, function: &str) -> i64 {
        self.say::<Option<i64>>(&format!("GET count:{function}")).unwrap_or_default()
    }

    /// `Client.get`.
    pub(super) fn job(&mut self, function: &str, id: &str) -> HashMap<String, Vec<u8>> {
        self.say(&format!("HGETALL job:{function}:{id}"))
    }

    pub(super) fn status(&mut self, function: &str, id: &str) -> Option<String> {
        self.say(&format!("HGET job:{function}:{id} status"))
    }

    /// `Worker.accept`: the start of a worker.
    pub(super) fn accept(&mut self, function: &str) {
        let sha: String = self.send(&[b"SCRIPT", b"LOAD", DUE_JOB.as_bytes()]);
        assert_eq!(sha, DUE_JOB_SHA);
        self.say::<i64>(&format!("INCR count:{function}"));
    }

    pub(super) fn exit(&mut self, function: &str) {
        self.say::<i64>(&format!("DECR count:{function}"));
    }

    /// One turn of a worker's loop, with the Redis's time: the job's ID and the queue that it came from.
    pub(super) fn pop(&mut self, function: &str) -> Option<(String, String)> {
        let (now, _): (i64, i64) = self.say("TIME");
        let due: Option<(String, String)> =
            self.say(&format!("EVALSHA {DUE_JOB_SHA} 1 queue:{function}:scheduled {now}"));
        let (queue, id) = due.or_else(|| {
            let lists = ["high", "normal", "low"].map(|list| format!("queue:{function}:{list}"));
            self.say(&format!("BRPOP {} 1", lists.join(" ")))
        })?;
        Some((id, queue.rsplit_once(':').unwrap().1.to_owned()))
    }

    pub(super) fn begin(&mut self, function: &str, id: &str) {
        self.say::<i64>(&format!("PUBLISH channel:{function} start:{id}"));
        self.say::<Value>(&format!("HMSET job:{function}:{id} status busy"));
    }

    pub(super) fn progress(&mut self, function: &str, id: &str, part: &str, whole: &str) {
        self.say::<Value>(&format!(
            "HMSET job:{function}:{id} status:dividend {part} status:divisor {whole}"
        ));
    }

    pub(super) fn finish(&mut self, function: &str, id: &str, status: &str, output: &[u8]) {
        let key = format!("job:{function}:{id}");
        self.send::<Value>(&[b"HMSET", key.as_bytes(), b"status", status.as_bytes(), b"output", output]);
        self.say::<i64>(&format!("EXPIRE {key} 90000"));
        self.say::<i64>(&format!("PUBLISH channel:{function} finish:{id}"));
        self.say::<i64>(&format!("LPUSH lock:{function}:{id} OK"));
        self.say::<i64>(&format!("EXPIRE lock:{function}:{id} 10"));
    }
}
