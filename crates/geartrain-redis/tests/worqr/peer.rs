//! Other implementations of Worqr, written with plain Redis commands: one as the release does it, with a process
//! set that all workers of a queue share, and one as the design has it, with a set for each worker.

use std::time::Duration;

use geartrain_testkit::peers::RedisServer;
use redis::{Connection, FromRedisValue, Pipeline, PubSub, cmd, pipe};
use uuid::Uuid;

/// Which process sets a worker uses.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Sets {
    /// `workingProcesses:{Q}`, as in the release.
    Shared,
    /// `workingProcesses:{W}_{Q}`, as in the design.
    Own,
}

/// A worker and client of another implementation.
pub(super) struct Native {
    connection: Connection,
    pub(super) id: String,
    sets: Sets,
}

/// A task that it has.
pub(super) struct Taken {
    pub(super) process: String,
    pub(super) task: Vec<u8>,
}

impl Native {
    /// A client, and a worker once it is started.
    pub(super) fn new(redis: &RedisServer, sets: Sets) -> Native {
        let connection = connection(redis);
        Native { connection, id: Uuid::now_v7().to_string(), sets }
    }

    fn set(&self, queue: &str) -> String {
        match self.sets {
            Sets::Shared => format!("worqr:workingProcesses:{queue}"),
            Sets::Own => format!("worqr:workingProcesses:{}_{queue}", self.id),
        }
    }

    fn run<T: FromRedisValue>(&mut self, commands: &mut Pipeline) -> T {
        commands.atomic().query(&mut self.connection).unwrap()
    }

    pub(super) fn enqueue(&mut self, queue: &str, tasks: &[&str]) {
        let mut commands = pipe();
        commands.cmd("LPUSH").arg(format!("worqr:queues:{queue}")).arg(tasks);
        commands.cmd("PUBLISH").arg(format!("worqr_{queue}_work")).arg(tasks.len());
        self.run::<()>(&mut commands);
    }

    /// Enqueues a task unless its marker is there.
    pub(super) fn enqueue_unique(&mut self, queue: &str, task: &str, md5: &str) -> bool {
        let marker = format!("worqr:uniqueTasks:{md5}");
        let held: Option<String> = cmd("GET").arg(&marker).query(&mut self.connection).unwrap();
        if held.is_some_and(|held| !held.is_empty()) {
            return false;
        }
        let mut commands = pipe();
        commands.cmd("SET").arg(&marker).arg(" ");
        commands.cmd("LPUSH").arg(format!("worqr:queues:{queue}")).arg(task);
        commands.cmd("PUBLISH").arg(format!("worqr_{queue}_work")).arg(1);
        self.run::<()>(&mut commands);
        true
    }

    /// Starts the worker, with a timer of a minute.
    pub(super) fn start_worker(&mut self) {
        let mut commands = pipe();
        commands.cmd("SADD").arg("worqr:workers").arg(&self.id);
        commands.cmd("SADD").arg("worqr:expiringWorkers").arg(&self.id);
        commands.cmd("SET").arg(format!("worqr:workerTimers:{}", self.id)).arg("RUN").arg("EX").arg(60);
        self.run::<()>(&mut commands);
    }

    /// As if it had been killed and its timer had run out.
    pub(super) fn die(&mut self) {
        let _: i64 =
            cmd("DEL").arg(format!("worqr:workerTimers:{}", self.id)).query(&mut self.connection).unwrap();
    }

    pub(super) fn start_work(&mut self, queue: &str) {
        let mut commands = pipe();
        commands.cmd("SADD").arg(format!("worqr:workingQueues:{}", self.id)).arg(queue);
        self.run::<()>(&mut commands);
    }

    pub(super) fn dequeue(&mut self, queue: &str) -> Option<Taken> {
        let process = format!("{queue}_{}", Uuid::now_v7());
        let (key, set) = (format!("worqr:processes:{process}"), self.set(queue));
        let mut commands = pipe();
        commands.cmd("RPOPLPUSH").arg(format!("worqr:queues:{queue}")).arg(&key);
        commands.cmd("SADD").arg(&set).arg(&process);
        let (task, _): (Option<Vec<u8>>, i64) = self.run(&mut commands);
        if let Some(task) = task {
            return Some(Taken { process, task });
        }
        let mut undo = pipe();
        undo.cmd("DEL").arg(&key).cmd("SREM").arg(&set).arg(&process);
        self.run::<()>(&mut undo);
        None
    }

    /// Finishes a task, and publishes it with a result that is JSON.
    pub(super) fn finish(&mut self, queue: &str, taken: &Taken, md5: &str, result: Option<&str>) {
        let mut commands = pipe();
        commands.cmd("DEL").arg(format!("worqr:uniqueTasks:{md5}"));
        commands.cmd("DEL").arg(format!("worqr:processes:{}", taken.process));
        commands.cmd("SREM").arg(self.set(queue)).arg(&taken.process);
        self.run::<()>(&mut commands);
        let task = serde_json::to_string(&String::from_utf8_lossy(&taken.task)).unwrap();
        let result = result.map(|result| format!(r#","result":{result}"#)).unwrap_or_default();
        let message = format!(r#"{{"workerId":"{}","task":{task}{result}}}"#, self.id);
        let _: i64 = cmd("PUBLISH")
            .arg(format!("worqr_{queue}_done"))
            .arg(message)
            .query(&mut self.connection)
            .unwrap();
    }

    pub(super) fn cancel(&mut self, queue: &str, task: &str) {
        let mut commands = pipe();
        commands.cmd("LREM").arg(format!("worqr:queues:{queue}")).arg(0).arg(task);
        commands.cmd("PUBLISH").arg(format!("worqr_{queue}_cancel")).arg(task);
        self.run::<()>(&mut commands);
    }

    /// Ends work on a queue as the release does it: all processes of the native queue set go back.
    pub(super) fn stop_work(&mut self, queue: &str) {
        self.return_sets(&[queue.to_owned()]);
        let mut commands = pipe();
        commands.cmd("SREM").arg(format!("worqr:workingQueues:{}", self.id)).arg(queue);
        self.run::<()>(&mut commands);
    }

    /// Looks for dead workers as the release does it. It publishes nothing.
    pub(super) fn reap(&mut self) {
        let ids: Vec<String> =
            cmd("SMEMBERS").arg("worqr:expiringWorkers").query(&mut self.connection).unwrap();
        for id in ids {
            let timer: Option<String> =
                cmd("GET").arg(format!("worqr:workerTimers:{id}")).query(&mut self.connection).unwrap();
            if timer.is_some() {
                continue;
            }
            let work = format!("worqr:workingQueues:{id}");
            let members: Vec<String> = cmd("SMEMBERS").arg(&work).query(&mut self.connection).unwrap();
            self.return_sets(&members);
            let mut commands = pipe();
            for set in ["workers", "expiringWorkers", "permanentWorkers"] {
                commands.cmd("SREM").arg(format!("worqr:{set}")).arg(&id);
            }
            commands.cmd("DEL").arg(work);
            self.run::<()>(&mut commands);
        }
    }

    fn return_sets(&mut self, members: &[String]) {
        for member in members {
            let set = format!("worqr:workingProcesses:{member}");
            let processes: Vec<String> = cmd("SMEMBERS").arg(&set).query(&mut self.connection).unwrap();
            let mut commands = pipe();
            commands.cmd("DEL").arg(&set);
            for process in processes {
                let (queue, _) = process.rsplit_once('_').unwrap();
                let key = format!("worqr:processes:{process}");
                commands.cmd("RPOPLPUSH").arg(&key).arg(format!("worqr:queues:{queue}"));
                commands.cmd("DEL").arg(key);
            }
            self.run::<()>(&mut commands);
        }
    }
}

pub(super) fn connection(redis: &RedisServer) -> Connection {
    redis::Client::open(redis.url()).unwrap().get_connection().unwrap()
}

/// Subscribes to channels of a queue. A message that does not come fails the test.
pub(super) fn listen<'a>(connection: &'a mut Connection, channels: &[&str]) -> PubSub<'a> {
    connection.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut listening = connection.as_pubsub();
    channels.iter().for_each(|channel| listening.subscribe(channel).unwrap());
    listening
}

/// The next message, as channel and text.
pub(super) fn next(listening: &mut PubSub<'_>) -> (String, String) {
    let message = listening.get_message().unwrap();
    (message.get_channel_name().to_owned(), message.get_payload().unwrap())
}
