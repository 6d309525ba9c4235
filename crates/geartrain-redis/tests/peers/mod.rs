//! Calls to a real Redis, a Sentinel or a Cluster node.

#![allow(dead_code, reason = "not every test needs all of it")]
pub(crate) use geartrain_testkit::peers::until;
use geartrain_testkit::peers::{RedisServer, Scratch};
use redis::{FromRedisValue, RedisResult};

/// Sends a command to a port.
pub(crate) fn ask<T: FromRedisValue>(port: u16, words: &[&str]) -> RedisResult<T> {
    let mut connection = redis::Client::open(format!("redis://127.0.0.1:{port}"))?.get_connection()?;
    redis::cmd(words[0]).arg(&words[1..]).query(&mut connection)
}

/// Two Redis nodes that replicate, the first one master, and three sentinels that watch them.
pub(crate) struct SentinelGroup {
    pub(crate) nodes: [RedisServer; 2],
    sentinels: Vec<RedisServer>,
    /// Holds the configuration files of the sentinels while these run.
    _files: Scratch,
}

impl SentinelGroup {
    /// Starts the group, with further arguments for the master and for its replica.
    pub(crate) fn start(master: &[&str], replica: &[&str]) -> SentinelGroup {
        // Without the delay a new replica is synchronised at once and not after some seconds.
        let at_once = ["--repl-diskless-sync-delay", "0"];
        let master = RedisServer::start(&[&at_once, master].concat());
        let port = master.port().to_string();
        let replica = RedisServer::start(&[&at_once, replica, &["--replicaof", "127.0.0.1", &port]].concat());
        let files = Scratch::new("sentinels");
        let sentinels = (0..3).map(|number| sentinel(master.port(), &files, number)).collect();
        let group = SentinelGroup { nodes: [master, replica], sentinels, _files: files };
        group.until_replica(1);
        until("the sentinels know each other and the replica", || {
            group.sentinels.iter().all(|sentinel| {
                let known = |of: &str| -> usize {
                    let said: Vec<redis::Value> =
                        ask(sentinel.port(), &["SENTINEL", of, "main"]).unwrap_or_default();
                    said.len()
                };
                known("REPLICAS") == 1 && known("SENTINELS") == 2
            })
        });
        group
    }

    /// The URL of the master, through the sentinels.
    pub(crate) fn url(&self) -> String {
        let sentinels: Vec<String> =
            self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port())).collect();
        format!("redis+sentinel://{}/main", sentinels.join(","))
    }

    /// Waits until all sentinels name a node as the master. One that missed the failover would make the new
    /// master a replica of the old one as soon as that is back.
    pub(crate) fn until_master(&self, node: usize) {
        let port = self.nodes[node].port();
        until("the sentinels agree which node is the master", || {
            self.sentinels.iter().all(|sentinel| {
                ask::<(String, u16)>(sentinel.port(), &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"])
                    .is_ok_and(|(_, named)| named == port)
            }) && replication(port).contains("role:master")
        });
    }

    /// Waits until a node is a replica in sync.
    pub(crate) fn until_replica(&self, node: usize) {
        until("the replica has what the master has", || {
            replication(self.nodes[node].port()).contains("master_link_status:up")
        });
    }

    /// Makes one node a replica of the other. The sentinels do this too, after eight seconds.
    pub(crate) fn make_replica(&self, node: usize, master: usize) {
        let port = self.nodes[master].port().to_string();
        ask::<String>(self.nodes[node].port(), &["REPLICAOF", "127.0.0.1", &port]).unwrap();
    }
}

/// A node's INFO about replication; empty if it does not answer.
fn replication(port: u16) -> String {
    ask(port, &["INFO", "replication"]).unwrap_or_default()
}

/// A Sentinel that watches a master.
fn sentinel(master: u16, files: &Scratch, number: usize) -> RedisServer {
    let file = files.path().join(format!("sentinel-{number}.conf"));
    let text = format!(
        "sentinel monitor main 127.0.0.1 {master} 2
sentinel down-after-milliseconds main 500
sentinel failover-timeout main 2000\n"
    );
    std::fs::write(&file, text).unwrap();
    RedisServer::start(&[file.to_str().unwrap(), "--sentinel"])
}
