//! Those of this process who wait for jobs, or to be told that there are some.

use std::collections::BTreeMap;

use geartrain_core::{BackendError, Pop, PopReply, QueueName, Seconds, Timestamp, wire};

/// What somebody waits for, and where it goes.
pub(crate) enum Wanted {
    /// Jobs.
    Jobs(flume::Sender<Result<PopReply, BackendError>>),
    /// Only a word that there are some; or that there are none.
    Word(flume::Sender<Result<bool, BackendError>>),
}

/// Somebody who waits.
pub(crate) struct Sleeper {
    /// Of nothing, if only a word is wanted.
    pop: Pop,
    until: Seconds,
    wanted: Wanted,
    /// Whether to ask for it now.
    ask: bool,
    /// When something falls due for it.
    next: Option<Timestamp>,
}

impl Sleeper {
    pub(crate) fn new(pop: Pop, until: Seconds, wanted: Wanted) -> Sleeper {
        Sleeper { pop, until, wanted, ask: true, next: None }
    }

    /// Gives what was asked for. Jobs come back if nobody waits for them any more.
    pub(crate) fn give(self, reply: PopReply) -> Result<(), PopReply> {
        match self.wanted {
            Wanted::Jobs(to) => match to.try_send(Ok(reply)).map_err(flume::TrySendError::into_inner) {
                Ok(()) | Err(Err(_)) => Ok(()),
                Err(Ok(reply)) => Err(reply),
            },
            Wanted::Word(to) => {
                // Whoever stopped waiting in this instant has gone, here and below.
                let _ = to.send(Ok(true));
                Ok(())
            }
        }
    }

    /// Ends the wait: with trouble, or else with nothing.
    pub(crate) fn end(&self, trouble: Option<BackendError>) {
        match &self.wanted {
            Wanted::Jobs(to) => {
                let turn = self.pop.order.turn(self.pop.queues.len());
                let _ = to.send(trouble.map_or(Ok(PopReply { jobs: Vec::new(), turn }), Err));
            }
            Wanted::Word(to) => {
                let _ = to.send(trouble.map_or(Ok(false), Err));
            }
        }
    }

    pub(crate) fn is_asking(&self) -> bool {
        self.ask
    }

    /// Whether it has waited long enough.
    pub(crate) fn is_over(&self, elapsed: Seconds) -> bool {
        self.until <= elapsed
    }

    fn wants_jobs(&self) -> bool {
        matches!(self.wanted, Wanted::Jobs(_))
    }
}

/// Everyone who waits, numbered in the order in which they came.
#[derive(Default)]
pub(crate) struct Sleepers {
    all: BTreeMap<u64, Sleeper>,
}

impl Sleepers {
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn add(&mut self, number: u64, sleeper: Sleeper) {
        self.all.insert(number, sleeper);
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<Sleeper> {
        self.all.remove(&number)
    }

    pub(crate) fn any_asks(&self) -> bool {
        self.all.values().any(Sleeper::is_asking)
    }

    pub(crate) fn all_ask(&mut self) {
        self.all.values_mut().for_each(|sleeper| sleeper.ask = true);
    }

    /// Those ask whose time has come.
    pub(crate) fn ask_if_due(&mut self, elapsed: Seconds, moment: Timestamp) {
        for sleeper in self.all.values_mut() {
            sleeper.ask |= sleeper.is_over(elapsed) || sleeper.next.is_some_and(|next| next <= moment);
        }
    }

    /// How long until somebody's time has come.
    pub(crate) fn first_due(&self, elapsed: Seconds, moment: Timestamp) -> Option<Seconds> {
        let ends = self.all.values().map(|sleeper| sleeper.until - elapsed);
        let dues = self.all.values().filter_map(|sleeper| Some(sleeper.next? - moment));
        ends.chain(dues).min()
    }

    /// What is to be asked for. Jobs come first: those who only want to be told are told of what is left.
    pub(crate) fn waits(&self, elapsed: Seconds) -> Vec<wire::ParkedPop> {
        let asking = self.all.iter().filter(|(_, sleeper)| sleeper.ask);
        let (jobs, words): (Vec<_>, Vec<_>) = asking.partition(|(_, sleeper)| sleeper.wants_jobs());
        let wait = |(number, sleeper): (&u64, &Sleeper)| {
            let wait = (sleeper.until - elapsed).max(Seconds::ZERO);
            wire::ParkedPop { number: *number, pop: sleeper.pop.clone(), wait }
        };
        jobs.into_iter().chain(words).map(wait).collect()
    }

    /// There is nothing for one of them before this moment, unless they are woken.
    pub(crate) fn sleep(&mut self, number: u64, next: Option<Timestamp>) {
        if let Some(sleeper) = self.all.get_mut(&number) {
            (sleeper.ask, sleeper.next) = (false, next);
        }
    }

    /// Those who wait for jobs of a queue are served in the order in which they came.
    pub(crate) fn wake_first(&mut self, queue: &QueueName) {
        let mut asleep = self.all.values_mut().filter(|sleeper| sleeper.wants_jobs() && !sleeper.ask);
        if let Some(sleeper) = asleep.find(|sleeper| sleeper.pop.queues.contains(queue)) {
            sleeper.ask = true;
        }
    }

    /// All look again who want to be told that there is something in a queue.
    pub(crate) fn rouse(&mut self, queue: &QueueName) {
        let asleep = self.all.values_mut().filter(|sleeper| !sleeper.wants_jobs() && !sleeper.ask);
        asleep.filter(|sleeper| sleeper.pop.queues.contains(queue)).for_each(|sleeper| sleeper.ask = true);
    }

    /// Ends waits, with trouble or else with nothing.
    pub(crate) fn end(
        &mut self,
        is_over: impl Fn(&Sleeper) -> bool,
        trouble: impl Fn() -> Option<BackendError>,
    ) {
        self.all.retain(|_, sleeper| {
            let over = is_over(sleeper);
            if over {
                sleeper.end(trouble());
            }
            !over
        });
    }
}
