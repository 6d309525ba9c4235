//! The trace generator.

use fastrand::Rng;
use geartrain_core::*;

use super::fixture::{COUNTERS, Fixture, OPTIONS};
use super::tokens::Tokens;
use super::{PAYLOAD_BYTES_MAX, Step, limits};
use crate::model::Model;

/// Generates the trace of a seed.
///
/// ```
/// use geartrain_testkit::trace::generate;
/// assert_eq!(generate(7041), generate(7041));
/// assert_ne!(generate(7041), generate(7042));
/// ```
pub fn generate(seed: u64) -> Vec<Step> {
    run_generator(Generator::new(seed, false))
}

/// Generates a trace for a backend that folds priority and time into one double and orders equals by jid: no
/// two commands have the same time, and no number is so large that neighbouring doubles are far apart.
pub fn generate_timely(seed: u64) -> Vec<Step> {
    run_generator(Generator::new(seed, true))
}

fn run_generator(mut generator: Generator) -> Vec<Step> {
    let steps = generator.rng.usize(150..400);
    (0..steps).map(|number| generator.step(number)).collect()
}

/// Makes a command.
type Make = fn(&mut Generator) -> Command;

/// The base weight of each command; each trace scales them at random.
const WEIGHTS: [(u32, Make); 73] = [
    (160, Generator::put),
    (170, Generator::pop),
    (10, Generator::peek),
    (40, Generator::heartbeat),
    (110, Generator::complete),
    (35, Generator::fail),
    (45, Generator::retry),
    (12, Generator::timeout),
    (18, Generator::cancel),
    (15, Generator::unfail),
    (15, Generator::set_priority),
    (25, Generator::depend),
    (8, Generator::log),
    (15, Generator::track),
    (3, |_| Tracked.into()),
    (12, Generator::add_tags),
    (10, Generator::remove_tags),
    (5, Generator::tagged),
    (3, Generator::top_tags),
    (8, Generator::get),
    (3, Generator::get_many),
    (3, Generator::length),
    (15, Generator::jobs),
    (3, |_| Failures.into()),
    (4, Generator::failed),
    (8, Generator::queues),
    (4, |_| Workers.into()),
    (5, Generator::worker_jobs),
    (5, Generator::stats),
    (6, Generator::pause),
    (10, Generator::resume),
    (3, Generator::forget_queues),
    (3, Generator::forget_workers),
    (3, Generator::get_config),
    (2, |_| AllConfig.into()),
    (20, Generator::set_config),
    (10, Generator::unset_config),
    (12, Generator::recur),
    (2, Generator::unrecur),
    (3, Generator::get_recurring),
    (8, Generator::update_recurring),
    (4, Generator::tag_recurring),
    (3, Generator::untag_recurring),
    (20, Generator::attach),
    (12, Generator::detach),
    (14, Generator::progress),
    (12, Generator::chunk),
    (20, Generator::release),
    (14, Generator::worker_lost),
    (18, Generator::announce),
    (4, Generator::roll_call),
    (3, Generator::announced),
    (14, Generator::set_limits),
    (3, Generator::get_limits),
    (6, Generator::get_result),
    (6, Generator::status),
    (25, Generator::why),
    (40, Generator::tick),
    (6, Generator::allocate_ids),
    (8, Generator::priority_counts),
    (12, Generator::canceled),
    (30, Generator::select),
    (25, Generator::act),
    (8, Generator::figures),
    (12, Generator::why_queue),
    (25, Generator::relock),
    (20, Generator::put_periodic),
    (3, Generator::remove_periodic),
    (6, Generator::periodics),
    (8, Generator::due_periodics),
    (30, Generator::fire_periodic),
    (25, Generator::set_aside),
    (25, Generator::end_set_aside),
];

/// The first two are in every trace; any other may get weight 0.
const ALWAYS_TOLD: usize = 2;

/// Bound on each list that the generator remembers.
const REMEMBERED: usize = 12;

/// A worker that popped a job.
#[derive(Debug, Clone)]
struct Attempt {
    jid: Jid,
    queue: QueueName,
    worker: WorkerName,
    token: Token,
}

struct Generator {
    rng: Rng,
    world: Fixture,
    weights: Vec<u32>,
    now: f64,
    tame: bool,
    /// The usual time between two commands.
    pace: f64,
    /// The state that the trace has produced so far.
    model: Model,
    tokens: Tokens,
    /// Attempts under way.
    held: Vec<Attempt>,
    /// Attempts that have ended.
    spent: Vec<Attempt>,
    /// The commands that ended them, to be repeated.
    sent: Vec<Command>,
    /// Times at which a lock expires or a job comes due.
    moments: Vec<f64>,
    /// How many unique spans were made.
    spans: u32,
}

impl Generator {
    fn new(seed: u64, tame: bool) -> Generator {
        let mut rng = Rng::with_seed(seed);
        let now = match rng.u32(..6) {
            0..3 if tame => 1_000_000.0,
            0 | 1 => 0.0,
            2 => -1000.5,
            3 => 86_390.0,
            _ => 1.7e9,
        };
        let pace = [0.125, 1.0, 1.0, 4.0][rng.usize(..4)];
        // Each trace has its own weights: some commands are absent and others frequent, which reaches deeper
        // states.
        let mood = |(place, (weight, _)): (usize, &(u32, _))| {
            let often = [0, 1, 1, 1, 2, 4][rng.usize(..6)];
            if place < ALWAYS_TOLD { *weight } else { weight * often }
        };
        let weights = WEIGHTS.iter().enumerate().map(mood).collect();
        Generator {
            rng,
            world: Fixture::new(),
            weights,
            now,
            tame,
            pace,
            model: Model::new(limits()),
            tokens: Tokens::default(),
            held: Vec::new(),
            spent: Vec::new(),
            sent: Vec::new(),
            moments: Vec::new(),
            spans: 0,
        }
    }

    fn step(&mut self, number: usize) -> Step {
        self.wait();
        if self.tame {
            // A time that no other step has.
            self.now = (self.now * 4.0).floor() / 4.0 + number as f64 / 4096.0;
        }
        let command = self.command();
        let now = moment(self.now);
        let (answer, _) = self.model.run(now, &self.tokens.command(&command));
        self.tokens.learn(number, &answer);
        self.observe(number, &command, &answer);
        Step { number, now, command }
    }

    fn command(&mut self) -> Command {
        let mut point = self.rng.u32(..self.weights.iter().sum::<u32>());
        for (weight, (_, make)) in self.weights.clone().into_iter().zip(WEIGHTS) {
            if point < weight {
                let command = make(self);
                return self.unless_idle(command);
            }
            point -= weight;
        }
        unreachable!("the point is below the sum of the weights")
    }

    /// While no job is held, commands of holders are replaced by commands that lead to a held job.
    fn unless_idle(&mut self, command: Command) -> Command {
        let by_a_holder = matches!(
            command,
            Command::Heartbeat(_)
                | Command::Complete(_)
                | Command::Fail(_)
                | Command::Retry(_)
                | Command::Timeout(_)
                | Command::Progress(_)
                | Command::Chunk(_)
                | Command::Release(_)
        );
        match self.rng.u32(..10) {
            0..4 if by_a_holder && self.held.is_empty() => self.pop(),
            4..8 if by_a_holder && self.held.is_empty() => self.put(),
            _ => command,
        }
    }

    /// Moves time: mostly a little, sometimes a lot or backwards, and often exactly to a deadline.
    fn wait(&mut self) {
        self.now += match self.rng.u32(..100) {
            0..40 => 0.0,
            40..50 => self.rng.f64(),
            50..55 => 0.5,
            55..75 => f64::from(self.rng.u32(1..12)) * self.pace,
            75..86 => f64::from(self.rng.u32(10..80)) * self.pace,
            86 => f64::from(self.rng.u32(600..8000)),
            87 => f64::from(self.rng.u32(1..5)) * 86_400.0,
            88..91 => -f64::from(self.rng.u32(1..100)) / 2.0,
            91 if self.percent(30) => -f64::from(self.rng.u32(1..3)) * 86_400.0,
            _ => match self.rng.choice(&self.moments) {
                Some(moment) if (moment - self.now).abs() < 1e6 => moment - self.now,
                _ => 1.0,
            },
        };
    }

    /// Records which worker holds which job.
    fn observe(&mut self, number: usize, command: &Command, answer: &Answer) {
        match (command, answer) {
            (Command::Pop(_), Ok(Reply::Pop(PopReply { jobs, .. })))
            | (Command::Relock(_), Ok(Reply::Relock(jobs))) => {
                for (place, popped) in jobs.iter().enumerate() {
                    self.forget_attempts(&popped.jid);
                    self.held.push(Attempt {
                        jid: popped.jid.clone(),
                        queue: popped.queue.clone(),
                        worker: popped.lock.worker.clone(),
                        token: Tokens::name(number, place),
                    });
                    self.moments.push(popped.lock.expires.get());
                    self.moments.push(self.now + 10.0);
                    let deadline = popped.details.as_ref().and_then(|details| details.deadline);
                    self.moments.extend(deadline.map(Timestamp::get));
                }
            }
            (Command::Heartbeat(_), Ok(Reply::Heartbeat(deadline))) => self.moments.push(deadline.get()),
            (Command::Put(put), Ok(_)) => {
                if put.delay > Seconds::ZERO {
                    self.moments.push(self.now + put.delay.get());
                }
                let expires = put.options.as_ref().and_then(|terms| terms.expires);
                self.moments.extend(expires.into_iter().flat_map(|at| [at.get(), at.get() + 0.5]));
            }
            (Command::Recur(recur), Ok(_)) => {
                self.moments.push(self.now + crate::model::interval(&recur.every).get())
            }
            (Command::Complete(Complete { jid, .. }) | Command::Fail(Fail { jid, .. }), Ok(_)) => {
                self.forget_attempts(jid);
                self.sent.push(command.clone());
                if let Ok(Reply::GetResult(Some(kept))) = self.look(GetResult { jid: jid.clone() }) {
                    self.moments.push(kept.until.get());
                }
            }
            (
                Command::Retry(Retry { jid, delay, .. }) | Command::Release(Release { jid, delay, .. }),
                Ok(_),
            ) => {
                self.forget_attempts(jid);
                if *delay > Seconds::ZERO {
                    self.moments.push(self.now + delay.get());
                }
            }
            (Command::WorkerLost(_), Ok(Reply::WorkerLost(jids))) => {
                jids.iter().for_each(|jid| self.forget_attempts(jid))
            }
            (Command::Announce(_), Ok(_)) => self.moments.extend([self.now + 60.0, self.now + 60.5]),
            (Command::Timeout(timeout), Ok(_)) => {
                timeout.jids.iter().for_each(|jid| self.forget_attempts(jid))
            }
            (
                _,
                Err(
                    Refusal::LockLost { jid, .. }
                    | Refusal::NotRunning { jid, .. }
                    | Refusal::NoSuchJob { jid },
                ),
            ) => {
                self.forget_attempts(jid);
            }
            _ => {}
        }
        forget_old(&mut self.held);
        forget_old(&mut self.spent);
        forget_old(&mut self.sent);
        forget_old(&mut self.moments);
    }

    fn forget_attempts(&mut self, jid: &Jid) {
        let (gone, held) =
            std::mem::take(&mut self.held).into_iter().partition(|attempt| attempt.jid == *jid);
        self.held = held;
        self.spent.extend::<Vec<_>>(gone);
    }

    /// Runs a read on the model.
    fn look(&mut self, command: impl Into<Command>) -> Answer {
        self.model.run(moment(self.now), &command.into()).0
    }

    // Choices.

    fn percent(&mut self, chance: u32) -> bool {
        self.rng.u32(..100) < chance
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        self.rng.choice(of).expect("there is something to choose from").clone()
    }

    fn some<T>(&mut self, numbers: std::ops::Range<usize>, one: fn(&mut Generator) -> T) -> Vec<T> {
        (0..self.rng.usize(numbers)).map(|_| one(self)).collect()
    }

    fn maybe<T>(&mut self, chance: u32, one: fn(&mut Generator) -> T) -> Option<T> {
        self.percent(chance).then(|| one(self))
    }

    /// A job: usually one that there is, which may be a child of a recurring one.
    fn jid(&mut self) -> Jid {
        match self.rng.u32(..100) {
            0..65 => self.rng.choice(self.model.jids()).unwrap_or_else(|| self.any_jid()),
            65..80 => self.held_jid(),
            _ => self.any_jid(),
        }
    }

    /// A job of the fixture.
    fn any_jid(&mut self) -> Jid {
        self.one(&self.world.jids.clone())
    }

    /// A dependency: often the same job, so that it has several dependents.
    fn dependency(&mut self) -> Jid {
        if self.percent(30) { self.world.jids[0].clone() } else { self.jid() }
    }

    /// A job with open dependencies, if there is one.
    fn blocked_jid(&mut self) -> Jid {
        let which = Listing::Depends(self.queue());
        match self.look(Jobs { which, page: Page::default() }) {
            Ok(Reply::Jobs(jids)) if !jids.is_empty() && self.percent(75) => self.one(&jids),
            _ => self.jid(),
        }
    }

    /// A waiting job, if there is one.
    fn waiting_jid(&mut self) -> Jid {
        let which = Listing::Waiting(self.queue());
        match self.look(Jobs { which, page: Page::default() }) {
            Ok(Reply::Jobs(jids)) if !jids.is_empty() => self.one(&jids),
            _ => self.jid(),
        }
    }

    fn held_jid(&mut self) -> Jid {
        match self.rng.choice(&self.held) {
            Some(attempt) => attempt.jid.clone(),
            None => self.any_jid(),
        }
    }

    fn queue(&mut self) -> QueueName {
        self.one(&self.world.queues.clone())
    }

    fn worker(&mut self) -> WorkerName {
        self.one(&self.world.workers.clone())
    }

    fn klass(&mut self) -> Klass {
        self.one(&self.world.klasses.clone())
    }

    fn tag(&mut self) -> Tag {
        self.one(&self.world.tags.clone())
    }

    fn group(&mut self) -> Group {
        self.one(&self.world.groups.clone())
    }

    /// A group: as often as not one that has failed jobs, if there is any.
    fn any_group(&mut self) -> Group {
        if let Ok(Reply::Failures(groups)) = self.look(Failures)
            && !groups.is_empty()
            && self.rng.bool()
        {
            return self.one(&groups.into_keys().collect::<Vec<_>>());
        }
        self.one(&self.world.all_groups())
    }

    fn recurring(&mut self) -> Jid {
        self.one(&self.world.recurring.clone())
    }

    fn priority(&mut self) -> Priority {
        let wild = if self.tame { [0.25, 0.75, 3.0] } else { [0.1, 0.05, 1e10] };
        let priority = self.one(&[0.0, 0.0, 1.0, 1.0, 2.0, -1.0, wild[0], wild[1], 2.7, -0.5, wild[2]]);
        Priority::new(priority).expect("it is finite")
    }

    fn retries(&mut self) -> u32 {
        self.one(&[0, 0, 1, 1, 2, 5, RETRIES_MAX])
    }

    fn delay(&mut self) -> Seconds {
        let most = if self.tame { 1e6 } else { 1e308 };
        let delay = self.one(&[0.0, 0.0, 0.0, 0.0, 5.0, 5.0, 0.5, 30.0, 100.0, -3.0, most]);
        Seconds::new(delay).expect("it is finite")
    }

    fn cycles(&mut self) -> Cycles {
        if self.percent(25) { Cycles::Accept } else { Cycles::Refuse }
    }

    fn payload(&mut self) -> Payload {
        if self.rng.u32(..200) == 0 && !self.tame {
            return Payload::from(vec![b'x'; PAYLOAD_BYTES_MAX + 1]);
        }
        match self.rng.u32(..4) {
            0 => Payload::from("{}"),
            1 => Payload::from(""),
            2 => Payload::from(vec![b'x'; PAYLOAD_BYTES_MAX]),
            _ => Payload::from(format!("{{\"n\":{}}}", self.rng.u32(..1000))),
        }
    }

    fn message(&mut self) -> String {
        if self.rng.u32(..100) == 0 && !self.tame {
            return "m".repeat(PAYLOAD_BYTES_MAX + 1);
        }
        self.one(&["it broke", "no route", "", "ä"]).to_owned()
    }

    fn count(&mut self) -> Count {
        Count::new(self.one(&[0, 1, 1, 1, 1, 2, 2, 3, 6])).expect("it is small")
    }

    fn page(&mut self) -> Page {
        if self.percent(60) {
            return Page::default();
        }
        Page { offset: self.rng.usize(..4), count: self.count() }
    }

    /// A claim to hold a job: usually by the worker that does.
    fn claim(&mut self) -> (Jid, Holder, QueueName) {
        let attempt = match self.rng.u32(..100) {
            0..85 => self.rng.choice(&self.held).cloned(),
            85..93 => self.rng.choice(&self.spent).cloned(),
            _ => None,
        };
        let mut attempt = match attempt {
            Some(attempt) => attempt,
            None => {
                Attempt { jid: self.jid(), queue: self.queue(), worker: self.worker(), token: Token::new(0) }
            }
        };
        if self.percent(4) {
            attempt.worker = self.worker();
        }
        if self.percent(3) {
            attempt.token = self.rng.choice(&self.held).map_or(Token::new(1), |other| other.token);
        }
        let holder =
            if self.rng.bool() { Holder::Token(attempt.token) } else { Holder::Worker(attempt.worker) };
        (attempt.jid, holder, attempt.queue)
    }

    fn supposed_queue(&mut self, queue: QueueName) -> Option<QueueName> {
        match self.rng.u32(..20) {
            0..10 => Some(queue),
            10 => Some(self.queue()),
            _ => None,
        }
    }

    // Commands, in the order of `WEIGHTS`.

    fn put(&mut self) -> Command {
        let depends = if self.percent(30) { self.some(1..4, Generator::dependency) } else { Vec::new() };
        let existing = self.one(&[
            Existing::Keep,
            Existing::Replace,
            Existing::Replace,
            Existing::Replace,
            Existing::Require,
        ]);
        let put = Put {
            queue: self.queue(),
            jid: if self.percent(70) { self.any_jid() } else { self.jid() },
            klass: self.klass(),
            payload: self.payload(),
            delay: self.delay(),
            priority: self.maybe(50, Generator::priority),
            retries: self.maybe(60, Generator::retries),
            tags: self.maybe(40, |generator| generator.some(0..4, Generator::tag)),
            depends,
            caller: self.maybe(60, Generator::worker),
            existing,
            cycles: self.cycles(),
            options: None,
        };
        // One error at a time: which of two is reported is not specified.
        let right = put.payload.bytes().len() <= PAYLOAD_BYTES_MAX;
        let terms = if self.percent(35) { Some(Box::new(self.put_options(right))) } else { None };
        let put = Put { options: terms, ..put };
        let put = self.with_a_key_of_another(put);
        let mut put = self.without_a_second_wrong(put);
        let is_plain = put.existing == Existing::Keep && put.depends.is_empty() && put.delay <= Seconds::ZERO;
        if is_plain
            && self.percent(25)
            && let Some(terms) = &mut put.options
        {
            let group = self.rng.choice(&self.world.groups).cloned().expect("there is one");
            terms.failure = Some(Box::new((group, "no such host".to_owned())));
        }
        put.into()
    }

    fn pop(&mut self) -> Command {
        let order = match self.rng.u32(..4) {
            0 | 1 => PopOrder::Strict,
            2 => PopOrder::RoundRobin { turn: self.rng.usize(..7) },
            _ => PopOrder::Priority { turn: self.rng.usize(..7) },
        };
        let mut queues = self.world.queues.clone();
        self.rng.shuffle(&mut queues);
        queues.truncate(self.one(&[1, 1, 1, 1, 2, 3]));
        if self.rng.u32(..300) == 0 {
            queues.clear();
        } else if self.percent(3) && !matches!(order, PopOrder::Priority { .. }) {
            queues.push(queues[0].clone());
        }
        let mut count = self.count();
        if self.tame && count.get() > 1 {
            // Locks of one pop have one deadline.
            count = Count::ONE;
        }
        let klasses = match self.rng.u32(..300) {
            0 => Some(Vec::new()),
            1..60 => Some(self.some(1..4, Generator::klass)),
            _ => None,
        };
        Pop { queues, worker: self.worker(), count, order, whole: self.percent(30), klasses }.into()
    }

    fn peek(&mut self) -> Command {
        Peek { queue: self.queue(), count: self.count() }.into()
    }

    fn heartbeat(&mut self) -> Command {
        let (jid, holder, _) = self.claim();
        Heartbeat { jid, holder, payload: self.maybe(30, Generator::payload) }.into()
    }

    fn again(&mut self) -> Option<Command> {
        if self.percent(8) { self.rng.choice(&self.sent).cloned() } else { None }
    }

    fn complete(&mut self) -> Command {
        if let Some(sent) = self.again() {
            return sent;
        }
        let (jid, holder, queue) = self.claim();
        let next = self.maybe(40, |generator| Next {
            queue: generator.queue(),
            delay: generator.delay(),
            depends: if generator.percent(35) {
                generator.some(1..3, Generator::dependency)
            } else {
                Vec::new()
            },
            cycles: generator.cycles(),
        });
        let queue = self.supposed_queue(queue);
        let payload = self.maybe(30, Generator::payload);
        let result = self.result(payload.as_ref());
        Complete { jid, holder, queue, payload, next, result }.into()
    }

    fn fail(&mut self) -> Command {
        if let Some(sent) = self.again() {
            return sent;
        }
        let (jid, holder, _) = self.claim();
        let message = self.message();
        let payload =
            if message.len() > PAYLOAD_BYTES_MAX { None } else { self.maybe(30, Generator::payload) };
        let result = if message.len() > PAYLOAD_BYTES_MAX { None } else { self.result(payload.as_ref()) };
        Fail { jid, holder, group: self.group(), message, payload, result }.into()
    }

    fn retry(&mut self) -> Command {
        let (jid, holder, queue) = self.claim();
        let queue = self.supposed_queue(queue);
        let (group, message) = (self.maybe(40, Generator::group), self.maybe(40, Generator::message));
        let chance = self.maybe(40, Generator::random_unit);
        Retry { jid, holder, queue, delay: self.delay(), random: chance, group, message }.into()
    }

    fn timeout(&mut self) -> Command {
        let mut jids = self.some(0..3, Generator::held_jid);
        if self.percent(10) {
            jids.push(self.jid());
        }
        Timeout { jids }.into()
    }

    fn because(&mut self) -> Option<String> {
        self.maybe(50, |generator| match generator.rng.u32(..20) {
            0 => "b".repeat(1_025),
            1 => "b".repeat(1_024),
            _ => generator.one(&["no longer needed", "", "\u{e4}"]).to_owned(),
        })
    }

    fn cancel(&mut self) -> Command {
        let because = self.because();
        let jids = self.some(0..4, Generator::jid);
        self.moments.extend([self.now + 5.0, self.now + 100.0]);
        Cancel { jids, because, cascade: self.percent(25) }.into()
    }

    fn canceled(&mut self) -> Command {
        Canceled { jid: self.jid() }.into()
    }

    fn unfail(&mut self) -> Command {
        Unfail { queue: self.queue(), group: self.any_group(), count: self.count() }.into()
    }

    fn set_priority(&mut self) -> Command {
        SetPriority { jid: self.jid(), priority: self.priority() }.into()
    }

    fn depend(&mut self) -> Command {
        let change = match self.rng.u32(..5) {
            0..3 => DependChange::On(self.some(0..3, Generator::dependency)),
            3 => DependChange::Off(self.some(0..4, Generator::jid)),
            _ => DependChange::OffAll,
        };
        Depend { jid: self.blocked_jid(), change, cycles: self.cycles() }.into()
    }

    fn log(&mut self) -> Command {
        let message = self.message();
        let data = match self.rng.u32(..40) {
            0 if message.len() <= PAYLOAD_BYTES_MAX => {
                Some(format!("{{\"at\":\"{}\"}}", "x".repeat(PAYLOAD_BYTES_MAX)))
            }
            0..20 => None,
            _ => Some("{\"done\":1}".to_owned()),
        };
        Log { jid: self.jid(), message, data }.into()
    }

    fn track(&mut self) -> Command {
        Track { jid: self.jid(), on: self.percent(75) }.into()
    }

    fn add_tags(&mut self) -> Command {
        AddTags { jid: self.jid(), tags: self.some(0..4, Generator::tag) }.into()
    }

    fn remove_tags(&mut self) -> Command {
        RemoveTags { jid: self.jid(), tags: self.some(0..3, Generator::tag) }.into()
    }

    fn tagged(&mut self) -> Command {
        Tagged { tag: self.tag(), page: self.page() }.into()
    }

    fn top_tags(&mut self) -> Command {
        TopTags { page: self.page() }.into()
    }

    fn get(&mut self) -> Command {
        Get { jid: self.jid() }.into()
    }

    fn get_many(&mut self) -> Command {
        GetMany { jids: self.some(0..6, Generator::jid) }.into()
    }

    fn length(&mut self) -> Command {
        Length { queue: self.queue() }.into()
    }

    fn jobs(&mut self) -> Command {
        let queue = self.queue();
        let which = match self.rng.u32(..7) {
            0 => Listing::Complete,
            1 => Listing::Waiting(queue),
            2 => Listing::Running(queue),
            3 => Listing::Stalled(queue),
            4 => Listing::Scheduled(queue),
            5 => Listing::Depends(queue),
            _ => Listing::Recurring(queue),
        };
        let page = self.page();
        // A bulk change puts several jobs at one time, and the order of equals shows where a page is cut.
        let is_whole = self.tame && matches!(which, Listing::Depends(_));
        Jobs { which, page: if is_whole { Page::default() } else { page } }.into()
    }

    fn failed(&mut self) -> Command {
        Failed { group: self.any_group(), page: self.page() }.into()
    }

    fn queues(&mut self) -> Command {
        Queues { queue: self.maybe(50, Generator::queue) }.into()
    }

    fn worker_jobs(&mut self) -> Command {
        WorkerJobs { worker: self.worker() }.into()
    }

    fn stats(&mut self) -> Command {
        let ago = f64::from(self.one(&[0, 0, 0, 1, 2, 7])) * 86_400.0;
        Stats { queue: self.queue(), date: moment(self.now - ago) }.into()
    }

    fn pause(&mut self) -> Command {
        Pause { queues: self.some(0..3, Generator::queue) }.into()
    }

    fn resume(&mut self) -> Command {
        Resume { queues: self.some(0..4, Generator::queue) }.into()
    }

    fn forget_queues(&mut self) -> Command {
        ForgetQueues { queues: self.some(0..3, Generator::queue) }.into()
    }

    fn forget_workers(&mut self) -> Command {
        ForgetWorkers { workers: self.some(0..3, Generator::worker) }.into()
    }

    fn option(&mut self) -> String {
        if self.percent(1) { "o".repeat(4161) } else { self.one(&OPTIONS).0.to_owned() }
    }

    fn get_config(&mut self) -> Command {
        GetConfig { option: self.option() }.into()
    }

    fn set_config(&mut self) -> Command {
        let (option, values) = self.one(&OPTIONS);
        SetConfig { any: self.percent(60), ..SetConfig::new(option, self.one(values)) }.into()
    }

    fn unset_config(&mut self) -> Command {
        UnsetConfig { option: self.option() }.into()
    }

    fn interval(&mut self) -> Seconds {
        // A Redis folds priority and time into one double: after an interval of 1e300, time outweighs priority.
        let most = if self.tame { 1e6 } else { 1e300 };
        let interval =
            self.one(&[10.0, 10.0, 60.0, 7.0, 1.0, 2.5, 0.5, 0.001, 3600.0, 86_400.0, most, 0.0, -1.0, 1e-9]);
        Seconds::new(interval).expect("it is finite")
    }

    fn backlog(&mut self) -> u32 {
        self.one(&[0, 0, 1, 2, 5])
    }

    fn recur(&mut self) -> Command {
        let jid = if self.percent(2) {
            Jid::new("r".repeat(self.one(&[490, 491]))).expect("a jid may be that long")
        } else {
            self.recurring()
        };
        let long = jid.text_bytes() > 490;
        let offset = self.one(&[0.0, 0.0, 5.7, 60.0, -3.0, -100.0, f64::MAX]);
        let recur = Recur {
            queue: self.queue(),
            jid,
            klass: self.klass(),
            // One error at a time: which of two is reported is not specified.
            payload: Payload::from("{}"),
            every: Every::Interval(if long { Seconds::from(10) } else { self.interval() }),
            offset: Seconds::new(offset).expect("it is finite"),
            priority: self.priority(),
            retries: self.retries(),
            tags: self.some(0..3, Generator::tag),
            backlog: self.backlog(),
        };
        let payload = self.payload();
        let right = !long && crate::model::interval(&recur.every).get() >= 0.001;
        if right { Recur { payload, ..recur }.into() } else { recur.into() }
    }

    fn unrecur(&mut self) -> Command {
        Unrecur { jid: self.recurring() }.into()
    }

    fn get_recurring(&mut self) -> Command {
        GetRecurring { jid: self.recurring() }.into()
    }

    fn update_recurring(&mut self) -> Command {
        let interval = self.maybe(40, Generator::interval);
        let right = interval.is_none_or(|interval| interval.get() >= 0.001);
        let update = UpdateRecurring {
            jid: self.recurring(),
            priority: self.maybe(30, Generator::priority),
            retries: self.maybe(30, Generator::retries),
            every: interval.map(Every::Interval),
            backlog: self.maybe(30, Generator::backlog),
            payload: if right { self.maybe(30, Generator::payload) } else { None },
            klass: self.maybe(30, Generator::klass),
            queue: self.maybe(30, Generator::queue),
        };
        update.into()
    }

    fn tag_recurring(&mut self) -> Command {
        TagRecurring { jid: self.recurring(), tags: self.some(0..4, Generator::tag) }.into()
    }

    fn untag_recurring(&mut self) -> Command {
        UntagRecurring { jid: self.recurring(), tags: self.some(0..3, Generator::tag) }.into()
    }

    // Beyond Qless.

    fn attach(&mut self) -> Command {
        Attach { jid: self.jid(), waiter: self.waiter() }.into()
    }

    fn detach(&mut self) -> Command {
        let waiter = self.waiter();
        let who = match self.rng.u32(..20) {
            0..9 => DetachScope::One(waiter),
            9..15 => DetachScope::Connection { stream_id: waiter.stream_id, connection: waiter.connection },
            15..19 => DetachScope::Stream(waiter.stream_id),
            _ => DetachScope::All,
        };
        Detach { scope: who }.into()
    }

    fn progress(&mut self) -> Command {
        let (jid, holder, _) = self.claim();
        let portion = Portion::unchecked(self.rng.u32(..6), self.rng.u32(..5));
        let seconds_left = self.maybe(50, |generator| generator.rng.u32(..100));
        let said =
            self.maybe(40, |generator| if generator.percent(5) { too_large() } else { generator.payload() });
        Progress { text: said, ..Progress::new(jid, holder, Progressed { portion, seconds_left }) }.into()
    }

    fn chunk(&mut self) -> Command {
        let (jid, holder, _) = self.claim();
        let kind = if self.rng.bool() { ChunkKind::Data } else { ChunkKind::Warning };
        let bytes = if self.percent(5) { too_large() } else { self.payload() };
        Chunk { jid, holder, kind, bytes }.into()
    }

    fn release(&mut self) -> Command {
        let (jid, holder, _) = self.claim();
        let message = self.maybe(40, Generator::message);
        // One error at a time: which of two is reported is not specified.
        let is_good = message.as_ref().is_none_or(|message| message.len() <= PAYLOAD_BYTES_MAX);
        let delay = if is_good && self.percent(40) { self.delay() } else { Seconds::ZERO };
        Release { jid, holder, message, delay }.into()
    }

    fn relock(&mut self) -> Command {
        let attempt = self.rng.choice(&self.held).cloned();
        let worker = attempt.filter(|_| self.percent(75)).map(|attempt| attempt.worker);
        let worker = worker.unwrap_or_else(|| self.worker());
        let queues = if self.percent(35) { self.some(1..3, Generator::queue) } else { Vec::new() };
        let before = match self.rng.u32(..10) {
            0..3 => self.rng.choice(&self.held).map(|attempt| attempt.token),
            3 => self.rng.choice(&self.spent).map(|attempt| attempt.token),
            4 => Some(Token::new(0)),
            _ => None,
        };
        // Locks of one command have one deadline.
        let count = if self.tame { self.one(&[1, 1, 1, 0]) } else { self.one(&[0, 1, 1, 2, 3, 1000, 1001]) };
        Relock { worker, queues, count: Count::new(count).expect("it is not huge"), before }.into()
    }

    fn set_aside(&mut self) -> Command {
        let to = match self.rng.u32(..40) {
            0 => "",
            1 => "two words",
            2..6 => "redis://b",
            _ => "redis://a",
        };
        // One error at a time: which of two is reported is not specified.
        let few = if matches!(to, "" | "two words") { 1..3 } else { 0..6 };
        SetAside { jids: self.some(few, Generator::jid), to: to.to_owned() }.into()
    }

    fn end_set_aside(&mut self) -> Command {
        let aside = |jid: &Jid, model: &Model| model.is_set_aside(jid);
        let mut jids: Vec<Jid> =
            self.model.jids().into_iter().filter(|jid| aside(jid, &self.model)).collect();
        jids.truncate(self.rng.usize(1..6));
        if self.percent(20) {
            jids.extend(self.some(0..3, Generator::jid));
        }
        let end = if self.percent(60) { TransferEnd::Return } else { TransferEnd::Remove };
        EndSetAside { jids, end }.into()
    }

    fn put_periodic(&mut self) -> Command {
        let put = match self.put() {
            Command::Put(put) => put,
            other => unreachable!("it makes a put, not {other:?}"),
        };
        let options =
            put.options.map(|options| PutOptions { attach: None, expires: None, failure: None, ..*options });
        let put = Put {
            jid: self.recurring(),
            delay: Seconds::ZERO,
            depends: Vec::new(),
            cycles: Cycles::Refuse,
            options: options.map(Box::new),
            ..put
        };
        let every = match self.rng.u32(..10) {
            // One error at a time: which of two is reported is not specified.
            0 if put.payload.bytes().len() <= PAYLOAD_BYTES_MAX => Period::Cron("61 * * * *".into()),
            0..5 => Period::Cron("*/5 * * * * *".into()),
            _ => Period::Interval(Seconds::from(10)),
        };
        let template = PeriodicTemplate {
            missed: self.one(&[Missed::All, Missed::Last(2), Missed::Skip]),
            overlap: self.one(&[Overlap::Allow, Overlap::Allow, Overlap::Skip, Overlap::CancelOld]),
            // Jobs that expire at the same moment do so in no specified order.
            expires_in: self
                .maybe(25, |generator| Seconds::new(generator.span(&[5.0, 100.0])).expect("it is finite")),
            is_paused: self.percent(10),
            ..PeriodicTemplate::new(put, every)
        };
        let next = self.run_time();
        let must_exist = self.percent(10);
        PutPeriodic { jid: template.put.jid.clone(), template: Box::new(template), next, must_exist }.into()
    }

    /// A time at which a periodic job runs next, or none.
    fn run_time(&mut self) -> Option<Timestamp> {
        let later = self.one(&[0.0, 0.5, 5.0, 60.0]);
        self.percent(90).then(|| Timestamp::new(self.now + later).expect("it is finite"))
    }

    fn remove_periodic(&mut self) -> Command {
        RemovePeriodic { jid: self.recurring() }.into()
    }

    fn periodics(&mut self) -> Command {
        let only = self.maybe(50, Generator::recurring);
        let after = self.maybe(30, Generator::recurring);
        let count = Count::new(self.one(&[0, 1, 2, 100])).expect("it is not huge");
        Periodics { only, after, count }.into()
    }

    fn due_periodics(&mut self) -> Command {
        DuePeriodics { count: Count::new(self.one(&[0, 1, 2, 100])).expect("it is not huge") }.into()
    }

    fn fire_periodic(&mut self) -> Command {
        let jid = self.recurring();
        let known = self.model.next_run(&jid);
        let expected = if self.percent(85) { known } else { self.run_time() };
        // No two runs at the same moment, as for the spans of other options.
        let runs: Vec<Timestamp> = (0..self.one(&[0, 1, 1, 1, 2, 3]))
            .map(|run| {
                let earlier = self.span(&[10.0 * f64::from(run)]);
                Timestamp::new(self.now - earlier).expect("it is finite")
            })
            .collect();
        let next = self.run_time();
        FirePeriodic { jid, expected, runs: runs.into_iter().rev().collect(), next }.into()
    }

    fn worker_lost(&mut self) -> Command {
        let evidence = self.maybe(60, |generator| match generator.rng.u32(..30) {
            0 => "e".repeat(4_097),
            1 => "e".repeat(4_096),
            _ => generator.one(&["signal 9", "", "out of memory"]).to_owned(),
        });
        let holder = self.rng.choice(&self.held).map(|attempt| attempt.worker.clone());
        let worker = if self.percent(60) { holder } else { None };
        WorkerLost { worker: worker.unwrap_or_else(|| self.worker()), evidence }.into()
    }

    fn announce(&mut self) -> Command {
        let change = match self.rng.u32(..40) {
            0 => AnnounceChange::Only(self.too_many_capabilities()),
            1 => {
                let attempt_max = Some(self.bad_span());
                AnnounceChange::Can(vec![Capability { attempt_max, ..self.capability() }])
            }
            2..24 => AnnounceChange::Can(self.some(1..4, Generator::capability)),
            24..32 => AnnounceChange::Only(self.some(0..3, Generator::capability)),
            _ => AnnounceChange::Cannot(
                self.some(1..4, |generator| (generator.queue(), generator.some_klass())),
            ),
        };
        Announce { worker: self.worker(), change }.into()
    }

    fn roll_call(&mut self) -> Command {
        RollCall { queue: self.queue(), klass: self.some_klass() }.into()
    }

    fn announced(&mut self) -> Command {
        Announced { worker: self.maybe(50, Generator::worker) }.into()
    }

    fn set_limits(&mut self) -> Command {
        let most = |generator: &mut Generator| generator.one(&[1, 2, 3, 5, 8, 20]);
        let mut limits = QueueLimits::default();
        match self.rng.u32(..20) {
            0 => limits.jobs_max = Some(0),
            1 => limits.by_priority = vec![(self.priority(), 0)],
            2 => limits.by_priority = (0..17).map(|priority| (Priority::from(priority), 9)).collect(),
            3 => limits.by_priority = vec![(Priority::ZERO, 5), (Priority::from(1), 5), (Priority::ZERO, 3)],
            // A queue with long-lasting limits exercises little else.
            4..9 => {}
            _ => {
                limits.jobs_max = self.maybe(35, most);
                if self.percent(35) {
                    limits.by_priority = self.some(1..4, |generator| (generator.priority(), 0));
                    limits.by_priority.sort_unstable_by_key(|(priority, _)| *priority);
                    limits.by_priority.dedup_by_key(|(priority, _)| *priority);
                    self.rng.shuffle(&mut limits.by_priority);
                    limits.by_priority.iter_mut().for_each(|(_, max)| *max = most(self));
                }
                limits.rate = self.maybe(75, Generator::rate);
            }
        }
        SetLimits { queue: self.queue(), limits }.into()
    }

    fn get_limits(&mut self) -> Command {
        GetLimits { queue: self.queue() }.into()
    }

    fn get_result(&mut self) -> Command {
        GetResult { jid: self.jid() }.into()
    }

    fn status(&mut self) -> Command {
        let of = if self.rng.bool() {
            StatusOf::Jid(self.jid())
        } else {
            StatusOf::Unique(self.queue(), self.key())
        };
        Status { of }.into()
    }

    fn why(&mut self) -> Command {
        let jid = match self.rng.u32(..10) {
            0..2 => self.blocked_jid(),
            2..6 => self.waiting_jid(),
            _ => self.jid(),
        };
        Why { jid }.into()
    }

    fn tick(&mut self) -> Command {
        let count = self.one(&[0, 1, 1, 2, 3, 5, 100, 100_000]);
        Tick { count: Count::new(count).expect("it is not huge") }.into()
    }

    fn allocate_ids(&mut self) -> Command {
        let counter = match self.rng.u32(..30) {
            0 => String::new(),
            1 => "c".repeat(513),
            2 => "c".repeat(512),
            _ => self.one(&COUNTERS).to_owned(),
        };
        let good = (1..=512).contains(&counter.len());
        // One error at a time: which of two is reported is not specified.
        let count = if good { self.one(&[0, 1, 1, 1, 2, 7, 1_000, 100_000]) } else { 1 };
        AllocateIds { counter, count: Count::new(count).expect("it is not huge") }.into()
    }

    fn figures(&mut self) -> Command {
        Figures { queue: self.maybe(50, Generator::queue) }.into()
    }

    fn why_queue(&mut self) -> Command {
        WhyQueue { queue: self.queue() }.into()
    }

    fn priority_counts(&mut self) -> Command {
        let queue = self.queue();
        // A backend that folds priority and time into one double knows the sign of whole priorities only.
        let is_whole = |job: &Job| job.queue.as_ref() != Some(&queue) || job.priority.get().fract() == 0.0;
        let jids = self.model.jids();
        let whole = match self.look(GetMany { jids }) {
            Ok(Reply::GetMany(jobs)) => jobs.iter().all(is_whole),
            _ => false,
        };
        if self.tame && !whole { Length { queue }.into() } else { PriorityCounts { queue }.into() }
    }

    fn select(&mut self) -> Command {
        let mut select = Select::new(self.filter());
        if self.percent(3) {
            match self.rng.u32(..3) {
                0 => select.count = Count::new(self.one(&[0, 1001])).expect("it is not huge"),
                1 => select.after = Some(Cursor(self.one(&["", "row-", "nonsense"]).to_owned())),
                _ => select.filter.terms = vec![Term::Attempts(Comparison::Above, 1); FILTER_TERMS_MAX + 1],
            }
        }
        select.into()
    }

    fn act(&mut self) -> Command {
        let queue = self.maybe(50, Generator::queue);
        let act = match self.rng.u32(..12) {
            0..2 => BulkAct::Cancel { because: self.because() },
            2..5 => BulkAct::Requeue { queue },
            5..8 => BulkAct::Unfail { queue },
            8 => BulkAct::SetPriority { priority: self.priority() },
            9..11 => BulkAct::AddTags { tags: self.some(0..3, Generator::tag) },
            _ => BulkAct::RemoveTags { tags: self.some(0..3, Generator::tag) },
        };
        let mut filter = self.filter();
        if filter.is_empty() {
            filter.terms.push(Term::Klass(self.klass()));
        }
        let mut act = Act::new(filter, act);
        if self.percent(10) {
            act.only = self.some(1..4, Generator::jid);
        }
        act.into()
    }

    fn filter(&mut self) -> Filter {
        let mut filter = Filter { terms: self.some(0..4, Generator::term) };
        // Otherwise few jobs have a certain value.
        if self.percent(15) {
            let jid = self.jid();
            if let Ok(Reply::Get(Some(job))) = self.look(Get { jid })
                && let Some(number) = job.payload.text().and_then(|text| text.strip_prefix("{\"n\":"))
            {
                let value = number.trim_end_matches('}').to_owned();
                filter.terms.push(Term::Args(vec!["n".to_owned()], PayloadValue::Bare(value)));
            }
        }
        filter
    }

    fn term(&mut self) -> Term {
        use FilterState::{Complete, Depends, Failed, Running, Scheduled, Stalled, Waiting};
        let comparison =
            self.one(&[Comparison::Below, Comparison::AtMost, Comparison::AtLeast, Comparison::Above]);
        match self.rng.u32(..20) {
            0..4 => Term::Queue(self.queue()),
            4..6 => Term::Klass(self.klass()),
            6..12 => Term::State(
                self.one(&[Complete, Depends, Failed, Failed, Running, Scheduled, Stalled, Waiting]),
            ),
            12 | 13 => Term::Tag(self.tag()),
            14 | 15 => Term::Group(self.any_group()),
            16 => Term::Worker(self.worker()),
            17 | 18 => Term::Age(comparison, Seconds::from(self.one(&[0, 1, 10, 60, 3_600]))),
            _ => Term::Attempts(comparison, self.rng.u32(..4)),
        }
    }

    // Arguments.

    fn key(&mut self) -> UniqueKey {
        if self.rng.bool() { self.world.keys[0].clone() } else { self.one(&self.world.keys.clone()) }
    }

    fn waiter(&mut self) -> ResultWaiter {
        ResultWaiter {
            stream_id: self.rng.u64(1..3),
            connection: self.rng.u64(1..3),
            number: self.rng.u64(1..4),
        }
    }

    fn some_klass(&mut self) -> Option<Klass> {
        self.maybe(65, Generator::klass)
    }

    fn capability(&mut self) -> Capability {
        Capability {
            queue: self.queue(),
            klass: self.some_klass(),
            attempt_max: self.maybe(40, Generator::attempt_max),
        }
    }

    /// More than a worker may announce, no two the same.
    fn too_many_capabilities(&mut self) -> Vec<Capability> {
        let klass = |number| Klass::new(format!("k{number}")).expect("that is a good name");
        let queue = self.queue();
        (0..1025)
            .map(|number| Capability { queue: queue.clone(), klass: Some(klass(number)), attempt_max: None })
            .collect()
    }

    fn attempt_max(&mut self) -> Seconds {
        Seconds::from(self.one(&[1, 3, 5, 5, 20, 60]))
    }

    fn bad_span(&mut self) -> Seconds {
        Seconds::new(self.one(&[0.0, -1.0, DURATION_MAX.get().next_up()])).expect("it is finite")
    }

    /// A span that no other equals, because the order of two things due at the same time is not specified.
    fn span(&mut self, about: &[f64]) -> f64 {
        self.spans += 1;
        self.one(about) + f64::from(self.spans) / 1024.0
    }

    fn random_unit(&mut self) -> RandomUnit {
        RandomUnit::new(self.one(&[0.0, 0.25, 0.5, 1.0])).expect("it is from 0 to 1")
    }

    fn backoff(&mut self) -> Backoff {
        let first = self.one(&[0, 1, 5, 10]);
        let (factor, jitter) = (self.one(&[1.0, 2.0, 3.5]), self.one(&[0.0, 0.0, 0.5, 1.0]));
        let max = Seconds::from(first + self.one(&[0, 10, 100]));
        Backoff::exponential(Seconds::from(first), factor, max, jitter).expect("all of that is allowed")
    }

    fn rate(&mut self) -> Rate {
        let per = Seconds::new(self.one(&[1.0, 5.0, 30.0, 0.9, 60.0, 600.0])).expect("it is finite");
        Rate::new(self.one(&[1, 1, 2, 3]), per, self.one(&[1, 1, 2, 3])).expect("all of that is allowed")
    }

    /// A job result; too large only if nothing else in the command is.
    fn result(&mut self, payload: Option<&Payload>) -> Option<Box<JobResult>> {
        if !self.percent(45) || payload.is_some_and(|payload| payload.bytes().len() > PAYLOAD_BYTES_MAX) {
            return None;
        }
        let bytes = if self.percent(2) { too_large() } else { self.payload() };
        Some(Box::new(JobResult { code: self.one(&[0, 0, 1, -7]), bytes }))
    }

    fn put_options(&mut self, may_be_wrong: bool) -> PutOptions {
        if self.percent(4) {
            return PutOptions::default();
        }
        let mut terms = PutOptions {
            unique: self.maybe(50, Generator::key),
            attach: self.maybe(55, Generator::waiter),
            orphan_policy: if self.percent(45) { OrphanPolicy::WhileAwaited } else { OrphanPolicy::Always },
            on_end: if self.percent(25) { OnEnd::Forget } else { OnEnd::Keep },
            result_ttl: None,
            expires: None,
            attempt_max: self.maybe(35, Generator::attempt_max),
            backoff: self.maybe(35, Generator::backoff),
            crashes_max: self.maybe(30, |generator| generator.one(&[1, 1, 2, 5])),
            roll_call: self.percent(12),
            metadata: self
                .maybe(25, |generator| Payload::from(generator.one(&["", "sum", "{}", "\0\u{ff}"]))),
            on_dependency_failure: DependencyPolicy::Wait,
            traceparent: self.maybe(25, |generator| {
                let text = format!("00-{:032x}-{:016x}-01", generator.rng.u128(1..9), generator.rng.u64(1..));
                text.parse().expect("no id is zero")
            }),
            failure: None,
        };
        if self.percent(60) {
            terms.on_dependency_failure = self.one(&DependencyPolicy::ALL[1..]);
        }
        if self.percent(45) {
            let span = self.span(&[1.0, 10.0, 100.0, 3600.0]);
            terms.result_ttl = Some(Seconds::new(span).expect("it is finite"));
        }
        if self.percent(30) {
            terms.expires = Some(moment(self.now + self.span(&[0.5, 5.0, 5.0, 20.0, 60.0, 200.0])));
        }
        if self.percent(2) {
            terms.expires = Some(moment(self.now - self.one(&[0.0, 0.5, 10.0])));
        }
        if may_be_wrong && self.percent(4) {
            match self.rng.u32(..4) {
                0 => terms.attempt_max = Some(self.bad_span()),
                1 => terms.result_ttl = Some(self.bad_span()),
                2 => terms.metadata = Some(Payload::from(vec![b'x'; METADATA_BYTES_MAX + 1])),
                _ => terms.crashes_max = Some(0),
            }
        }
        terms
    }

    /// The put, but often of a new job, if it has a key: only then it can join another.
    fn with_a_key_of_another(&mut self, put: Put) -> Put {
        let known = self.model.jids();
        let new: Vec<Jid> = self.world.jids.iter().filter(|jid| !known.contains(jid)).cloned().collect();
        let has_key = put.options.as_ref().is_some_and(|terms| terms.unique.is_some());
        if has_key && !new.is_empty() && self.percent(60) {
            return Put { jid: self.one(&new), existing: Existing::Keep, ..put };
        }
        put
    }

    /// The put, without its second error: which of two is reported is not specified.
    fn without_a_second_wrong(&self, put: Put) -> Put {
        let mut rest = put.clone();
        rest.options.iter_mut().for_each(|terms| terms.attach = None);
        let refused = |put: &Put| self.model.clone().run(moment(self.now), &put.clone().into()).0.is_err();
        let waits = put.options.as_ref().is_some_and(|terms| terms.attach.is_some());
        if waits && refused(&put) && refused(&rest) { rest } else { put }
    }
}

fn too_large() -> Payload {
    Payload::from(vec![b'x'; PAYLOAD_BYTES_MAX + 1])
}

fn moment(seconds: f64) -> Timestamp {
    Timestamp::new(seconds).expect("a trace's times are finite")
}

fn forget_old<T>(list: &mut Vec<T>) {
    let old = list.len().saturating_sub(REMEMBERED);
    list.drain(..old);
}
