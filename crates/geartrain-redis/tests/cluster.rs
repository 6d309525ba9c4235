//! A queue on a Cluster: found by its prefix's slot, followed when the slot moves, and separate from other
//! prefixes.

use crate::peers;
use crate::subscriptions::assert_flushed;

use std::sync::Arc;

use geartrain_core::{
    Backend, Call, Command, Event, Get, Jid, Klass, Operation, Pop, Put, PutReply, QueueName, Seconds,
    StateName, WorkerName,
};
use geartrain_drill::LoadClients;
use geartrain_redis::{RedisBackend, RedisUrl};
use geartrain_testkit::peers::{RedisServer, free_port};
use peers::{ask, until};
use pollster::block_on;

/// A wait that is never used up: the test does not depend on it.
const LONG: i32 = 60;

/// Three masters, which share all slots, and replicas.
struct Cluster {
    nodes: Vec<RedisServer>,
    /// The first node's bus port, for CLUSTER MEET.
    bus: String,
}

impl Cluster {
    /// A node, and the port of its bus.
    fn node() -> (RedisServer, String) {
        // The default bus port, ten thousand above the node's, may not exist.
        let bus = free_port().to_string();
        let settings = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-port", &bus];
        (RedisServer::start(&[&settings[..], &["--repl-diskless-sync-delay", "0"]].concat()), bus)
    }

    /// Adds a replica of a master, and waits until it is in sync.
    fn add_replica(&mut self, of: usize) {
        let (replica, _) = Cluster::node();
        let first = self.nodes[0].port().to_string();
        ask::<String>(replica.port(), &["CLUSTER", "MEET", "127.0.0.1", &first, &self.bus]).unwrap();
        let master: String = ask(self.nodes[of].port(), &["CLUSTER", "MYID"]).unwrap();
        until("the new node knows its master", || {
            ask::<String>(replica.port(), &["CLUSTER", "REPLICATE", &master]).is_ok()
        });
        until("the replica has what the master has", || {
            ask::<String>(replica.port(), &["INFO", "replication"])
                .is_ok_and(|info| info.contains("master_link_status:up"))
        });
        let id: String = ask(replica.port(), &["CLUSTER", "MYID"]).unwrap();
        self.nodes.push(replica);
        // The replica as well: if it has met only its master when that is frozen, it can never ask for votes.
        until("all nodes know each other, and the replica as one", || {
            self.nodes.iter().all(|node| {
                let nodes: String = ask(node.port(), &["CLUSTER", "NODES"]).unwrap();
                nodes.lines().filter(|line| !line.contains("handshake")).count() == self.nodes.len()
                    && nodes.lines().any(|line| line.starts_with(&id) && line.contains("slave"))
            })
        });
    }

    fn start() -> Cluster {
        let nodes: Vec<(RedisServer, String)> = (0..3).map(|_| Cluster::node()).collect();
        for ((node, _), range) in nodes.iter().zip([["0", "5460"], ["5461", "10922"], ["10923", "16383"]]) {
            ask::<String>(node.port(), &["CLUSTER", "ADDSLOTSRANGE", range[0], range[1]]).unwrap();
        }
        for (number, (node, _)) in nodes.iter().enumerate() {
            // With equal epochs they would fight over slots.
            ask::<String>(node.port(), &["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]).unwrap();
            let (first, bus) = &nodes[0];
            if number > 0 {
                let met = ["CLUSTER", "MEET", "127.0.0.1", &first.port().to_string(), bus];
                ask::<String>(node.port(), &met).unwrap();
            }
        }
        let bus = nodes[0].1.clone();
        let cluster = Cluster { nodes: nodes.into_iter().map(|(node, _)| node).collect(), bus };
        until("the nodes are one Cluster", || {
            cluster.nodes.iter().all(|node| {
                let info: String = ask(node.port(), &["CLUSTER", "INFO"]).unwrap();
                info.contains("cluster_state:ok") && info.contains("cluster_size:3")
            })
        });
        cluster
    }

    fn url(&self, query: &str) -> String {
        let nodes: Vec<String> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        format!("redis+cluster://{}{query}", nodes.join(","))
    }

    fn slot(&self, prefix: &str) -> u16 {
        ask(self.nodes[0].port(), &["CLUSTER", "KEYSLOT", prefix]).unwrap()
    }

    /// The owner of a slot.
    fn owner(&self, slot: u16) -> usize {
        // By asking the nodes themselves: others refuse the key.
        let has = |node: &RedisServer| {
            let slots: Vec<(u16, u16, Vec<redis::Value>)> = ask(node.port(), &["CLUSTER", "SLOTS"]).unwrap();
            let range = slots.into_iter().find(|(first, last, _)| (*first..=*last).contains(&slot)).unwrap();
            range.2[1] == redis::Value::Int(node.port().into())
        };
        self.nodes.iter().position(has).unwrap()
    }

    /// Moves a slot with its keys to another node, as an administrator would. Returns the old and the new
    /// node.
    fn move_slot(&self, slot: u16) -> (usize, usize) {
        let from = self.owner(slot);
        let to = (from + 1) % self.nodes.len();
        let name = |node: usize| ask::<String>(self.nodes[node].port(), &["CLUSTER", "MYID"]).unwrap();
        let (from_name, to_name, slot) = (name(from), name(to), slot.to_string());
        let tell = |node: usize, words: &[&str]| {
            ask::<String>(self.nodes[node].port(), &[&["CLUSTER", "SETSLOT", &slot], words].concat())
                .unwrap();
        };
        tell(to, &["IMPORTING", &from_name]);
        tell(from, &["MIGRATING", &to_name]);
        let target = self.nodes[to].port().to_string();
        loop {
            let keys: Vec<String> =
                ask(self.nodes[from].port(), &["CLUSTER", "GETKEYSINSLOT", &slot, "1000"]).unwrap();
            if keys.is_empty() {
                break;
            }
            let mut words = vec!["MIGRATE", "127.0.0.1", &target, "", "0", "10000", "KEYS"];
            words.extend(keys.iter().map(String::as_str));
            ask::<String>(self.nodes[from].port(), &words).unwrap();
        }
        for node in [to, from, (to + 1) % self.nodes.len()] {
            tell(node, &["NODE", &to_name]);
        }
        (from, to)
    }
}

fn connect(url: &str) -> Arc<dyn Backend> {
    Arc::new(block_on(RedisBackend::connect(url.parse().unwrap())).unwrap())
}

fn run<O: Operation>(backend: &dyn Backend, operation: O) -> O::Reply {
    let command: Command = operation.into();
    let mut answers = block_on(backend.execute(vec![Call::from(command)])).unwrap();
    O::answer(answers.remove(0).unwrap()).unwrap()
}

fn queue() -> QueueName {
    QueueName::new("mail").unwrap()
}

fn put(jid: &str) -> Put {
    Put::new(queue(), Jid::new(jid).unwrap(), Klass::new("k").unwrap(), "{}")
}

fn pop() -> Pop {
    Pop::new(queue(), WorkerName::new("w1").unwrap())
}

#[test]
fn a_namespace_is_on_one_node_and_is_followed_when_it_moves() {
    let cluster = Cluster::start();
    for query in ["", "?prefix=shop"] {
        let url = cluster.url(query);
        let (here, there) = (connect(&url), connect(&url));
        let mut events = block_on(here.subscribe()).unwrap();
        let mut heard = || Event::clone(&block_on(events.next()).unwrap().event);

        // A put in one process wakes a parked pop of another.
        let parked = there.clone();
        let parked = std::thread::spawn(move || block_on(parked.pop_or_wait(pop(), Seconds::from(LONG))));
        assert_eq!(run(&*here, put("j1")), PutReply::Created);
        assert_eq!(parked.join().unwrap().unwrap().jobs[0].jid.to_string(), "j1");
        assert!(matches!(heard(), Event::Put { jid, .. } if jid.to_string() == "j1"));

        assert_flushed(&*here, "before");

        // Under load, the slot moves to another node.
        let clients = LoadClients::start(4, "load", || Ok(connect(&url))).unwrap();
        clients.wait_for_completed(30).unwrap();
        let prefix = url.parse::<RedisUrl>().unwrap().prefix().to_owned();
        let slot = cluster.slot(&prefix);
        let (from, to) = cluster.move_slot(slot);
        clients.wait_for_completed(30).unwrap();
        let ledger = clients.finish();
        assert_eq!(ledger.unanswered, 0, "{:?}", ledger.errors);
        ledger.verify(&*here).unwrap().assert_kept();
        until("all nodes know", || cluster.owner(slot) == to && from != to);

        // Old connections work as well as new ones.
        let parked = there.clone();
        let parked = std::thread::spawn(move || block_on(parked.pop_or_wait(pop(), Seconds::from(LONG))));
        assert_eq!(run(&*connect(&url), put("j2")), PutReply::Created);
        assert_eq!(parked.join().unwrap().unwrap().jobs[0].jid.to_string(), "j2");
        while !matches!(heard(), Event::Put { jid, .. } if jid.to_string() == "j2") {}
        assert_flushed(&*here, "after");
    }
}

#[test]
fn namespaces_are_apart_and_on_nodes_of_their_own() {
    let cluster = Cluster::start();
    // With so many names, some are on every node.
    let mut owners = std::collections::BTreeSet::new();
    for number in 0..12 {
        let url = cluster.url(&format!("?prefix=n{number}"));
        let backend = connect(&url);
        assert_eq!(run(&*backend, put("same")), PutReply::Created, "{url}");
        let prefix = url.parse::<RedisUrl>().unwrap().prefix().to_owned();
        let owner = cluster.owner(cluster.slot(&prefix));
        let key = format!("{prefix}ql:j:same");
        assert_eq!(ask::<u8>(cluster.nodes[owner].port(), &["EXISTS", &key]).unwrap(), 1, "{key}");
        owners.insert(owner);
    }
    assert_eq!(owners.len(), 3);
    let first = connect(&cluster.url("?prefix=n0"));
    let popped = block_on(first.pop_or_wait(pop(), Seconds::from(LONG))).unwrap();
    assert_eq!(popped.jobs[0].jid.to_string(), "same");
    let get = Get { jid: Jid::new("same").unwrap() };
    let other = run(&*connect(&cluster.url("?prefix=n1")), get).unwrap();
    assert_eq!(other.state.name(), StateName::Waiting);
}

#[test]
fn a_frozen_master_of_a_cluster_is_left_for_its_replica_and_none_of_its_answers_counts_afterwards() {
    let mut cluster = Cluster::start();
    let prefix = "{shop}";
    let slot = cluster.slot(prefix);
    let old = cluster.owner(slot);
    cluster.add_replica(old);
    let new = cluster.nodes.len() - 1;
    // A driver that knows only the node that will be frozen learns of the others from it.
    let url = |query: &str| {
        format!("redis+cluster://127.0.0.1:{}?prefix={prefix}{query}", cluster.nodes[old].port())
    };
    let (here, confirms) = (connect(&url("")), connect(&url("&replicas=1")));
    assert_eq!(run(&*confirms, put("before")), PutReply::Created);
    let parked = here.clone();
    let parked = std::thread::spawn(move || {
        let nothing = Pop::new(QueueName::new("empty").unwrap(), WorkerName::new("w").unwrap());
        block_on(parked.pop_or_wait(nothing, Seconds::from(1)))
    });
    cluster.nodes[old].freeze();
    assert_eq!(run(&*here, put("meanwhile")), PutReply::Created);
    let promoted: String = ask(cluster.nodes[new].port(), &["INFO", "replication"]).unwrap();
    assert!(promoted.contains("role:master"), "{promoted}");
    cluster.nodes[old].thaw();
    assert_eq!(run(&*here, put("after")), PutReply::Created);
    until("the old master is a replica", || {
        ask::<String>(cluster.nodes[old].port(), &["INFO", "replication"])
            .is_ok_and(|info| info.contains("role:slave") && info.contains("master_link_status:up"))
    });
    for jid in ["before", "meanwhile", "after"] {
        assert!(run(&*here, Get { jid: Jid::new(jid).unwrap() }).is_some(), "{jid} is lost");
    }
    // A pop that was parked meanwhile ended without a job, or with an error.
    drop(parked.join().unwrap());
}
