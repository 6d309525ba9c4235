//! Random generator of Qless calls, valid and invalid, over a small set of names.

use std::fmt;

/// One call: the arguments after the number of keys.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) words: Vec<Vec<u8>>,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for word in &self.words {
            let text = String::from_utf8_lossy(word);
            // Deep JSON and long names are cut off.
            let short: String = text.chars().take(60).collect();
            write!(f, "{short:?}{} ", if short.len() < text.len() { "…" } else { "" })?;
        }
        Ok(())
    }
}

const JIDS: [&str; 9] =
    ["a", "b", "c", "d", "e/f", "Ä", "night-1", "day-2", "0198c0ffee0000000000000000000001"];
const QUEUES: [&str; 3] = ["q", "r", "mail/ü"];
const WORKERS: [&str; 3] = ["w1", "w2", "w\"3"];
const TAGS: [&str; 4] = ["red", "7", "blue/ish", "x\"y"];
const GROUPS: [&str; 4] = ["oops", "timeout", "failed-retries-q", "failed-retries-r"];
const LISTINGS: [&str; 7] =
    ["running", "stalled", "scheduled", "depends", "recurring", "complete", "waiting"];
/// One recurs at whole seconds, the other never does: a Redis orders two that are due at the same time
/// differently.
const RECURRING: [(&str, &[&str]); 2] =
    [("night", &["60", "7", "0x10"]), ("day", &["0.25", "30.75", "7.5e-1"])];
const DATA: [&str; 13] = [
    "{}",
    "[]",
    "null",
    r#"{"x":[]}"#,
    " [1, 2.50, 12345678901234567890, 1e-7, -3] ",
    r#""a/b\u00e9\u0001\n""#,
    r#"{"a":{"b":[[],{}]},"c":"d","a":1}"#,
    "true",
    "-0",
    "1e999",
    "0.1e1",
    r#"{"deep":[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]}"#,
    r#"{"$bytes":"aGVsbG8="}"#,
];
const OPTIONS: [(&str, &[&str]); 14] = [
    ("heartbeat", &["60", "5", "0", "-1", "0x10", " 20 ", "1e2"]),
    ("q-heartbeat", &["3", "30", "-2"]),
    ("heartbeat-r", &["7", "0"]),
    ("grace-period", &["10", "0", "-3", "1000"]),
    ("jobs-history-count", &["0", "1", "2", "2.7", "-1", "50000"]),
    ("jobs-history", &["-1", "0", "100", "86400"]),
    ("max-job-history", &["0", "1", "2", "3", "5", "-1"]),
    ("q-max-concurrency", &["0", "1", "2", "1.5", "-1"]),
    ("max-concurrency-r", &["1", "3"]),
    ("stats-history", &["0", "1", "30"]),
    ("histogram-history", &["0", "1", "3"]),
    ("max-worker-age", &["0", "10", "86400", "3600"]),
    ("application", &["qless", "ours/\u{7f}", ""]),
    ("colour", &["blue", "7", "\"\n"]),
];

/// An argument that is mostly invalid anywhere. Fractions are chosen so that no two times become equal.
fn invalid(rng: &mut fastrand::Rng) -> Vec<u8> {
    const TEXTS: [&str; 47] = [
        "",
        " ",
        "nil",
        "0",
        "1",
        "-1",
        "0x10",
        " 7 ",
        "1e2",
        "2.3",
        "-2.3",
        "nan",
        "inf",
        "-inf",
        "1e999",
        "0x1p4",
        "0x",
        "1e",
        "1_0",
        "--1",
        "3\0",
        "soon",
        "{}",
        "[]",
        "[1]",
        "[1.50,\"red\"]",
        "[\"a\",\"b\"]",
        "[\"\"]",
        "[null]",
        "[[]]",
        "{\"a\":1}",
        "null",
        "true",
        "false",
        "}",
        "[1,",
        "[1.]",
        "01",
        "NaN",
        "\"\\ud800\"",
        "all",
        "on",
        "off",
        "a\0b",
        "a\nb",
        "\u{7f}\u{1}",
        "\u{1f600}",
    ];
    match rng.u8(..16) {
        0 => "x".repeat(513).into_bytes(),
        1 => "x".repeat(512).into_bytes(),
        2 => ("[".repeat(1001) + &"]".repeat(1001)).into_bytes(),
        3 => ("[".repeat(1000) + &"]".repeat(1000)).into_bytes(),
        4 => b"\xff".to_vec(),
        5 => "100001".into(),
        6 => "4294967296".into(),
        _ => TEXTS[rng.usize(..TEXTS.len())].into(),
    }
}

/// A job held by a worker.
struct Held {
    jid: String,
    queue: String,
    worker: String,
}

/// Generates a trace, call by call.
pub(crate) struct Generator {
    rng: fastrand::Rng,
    now: f64,
    number: usize,
    /// The queue and worker of the last pop.
    popped: Option<(String, String)>,
    held: Vec<Held>,
}

/// How many held jobs the generator remembers. The queue may have dropped older ones too.
const HELD_MAX: usize = 6;

type Words = Vec<String>;

fn words(words: &[&str]) -> Words {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn list(entries: &[&str]) -> String {
    serde_json::to_string(entries).expect("texts are JSON")
}

impl Generator {
    pub(crate) fn new(seed: u64) -> Generator {
        Generator { rng: fastrand::Rng::with_seed(seed), now: 0.0, number: 0, popped: None, held: Vec::new() }
    }

    /// Records the holder of a popped job, so that some reports come from the holder.
    pub(crate) fn learn(&mut self, reply: &[u8]) {
        let Some((queue, worker)) = self.popped.take() else { return };
        let documents: serde_json::Value = serde_json::from_slice(reply).unwrap_or_default();
        for document in documents.as_array().into_iter().flatten() {
            let jid = document["jid"].as_str().unwrap_or_default().to_owned();
            self.held.retain(|held| held.jid != jid);
            self.held.push(Held { jid, queue: queue.clone(), worker: worker.clone() });
        }
        let many = self.held.len().saturating_sub(HELD_MAX);
        self.held.drain(..many);
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.rng.usize(..of.len())]
    }

    fn some(&mut self, of: &[&'static str], most: usize) -> Vec<&'static str> {
        (0..self.rng.usize(..=most)).map(|_| self.one(of)).collect()
    }

    fn often(&mut self, of_ten: u8) -> bool {
        self.rng.u8(..10) < of_ten
    }

    /// A time whose fraction no other call has, so that adding whole seconds never makes two equal.
    fn time(&mut self) -> f64 {
        let step = match self.rng.u8(..20) {
            0 => -30,
            1 => -2,
            2 => 90_000,
            3 => 700,
            4..8 => 0,
            8..12 => 11,
            _ => self.rng.i32(1..8),
        };
        self.now += f64::from(step);
        self.number += 1;
        self.now + (2 * self.number + 1) as f64 / 4096.0
    }

    /// The next call.
    pub(crate) fn call(&mut self) -> Call {
        let now = self.time();
        let mut words = self.valid();
        let now = match self.rng.u8(..30) {
            0 => format!(" {now}\t"),
            1 => format!("{now:e}"),
            2 => format!("{now:E} "),
            _ => now.to_string(),
        };
        words.insert(1, now);
        let mut words: Vec<Vec<u8>> = words.into_iter().map(String::into_bytes).collect();
        if self.rng.u8(..6) == 0 {
            self.corrupt(&mut words);
        }
        Call { words }
    }

    fn corrupt(&mut self, words: &mut Vec<Vec<u8>>) {
        let wrong = invalid(&mut self.rng);
        match self.rng.u8(..20) {
            0..5 => words.truncate(self.rng.usize(2..=words.len())),
            5..15 if words.len() > 2 => {
                let at = self.rng.usize(2..words.len());
                words[at] = wrong;
            }
            15 | 16 => words.push(wrong),
            17 if words.len() > 2 => drop(words.remove(self.rng.usize(2..words.len()))),
            18 => words[1] = self.one(&["", "soon", "nan", "inf", "1e999", "0x", "-", "1 2"]).into(),
            19 => words[0] = self.one(&["", "PUT", "dance", "put ", "recur.", "Ä"]).into(),
            _ => words.truncate(self.rng.usize(..=words.len())),
        }
        // A Redis orders jobs that are popped or created at the same time differently.
        let count = match words.first().map(Vec::as_slice) {
            Some(b"pop") => words.get_mut(4),
            Some(b"peek") => words.get_mut(3),
            _ => None,
        };
        if let Some(count) = count {
            let number = String::from_utf8_lossy(count).trim().trim_start_matches("0x").parse::<f64>();
            if number.is_ok_and(|number| number > 1.0 && number < 1e5) {
                *count = b"0x1".to_vec();
            }
        }
    }

    fn valid(&mut self) -> Words {
        match self.rng.u32(..1000) {
            0..190 => self.put("put"),
            190..210 => self.put("requeue"),
            210..400 => self.pop(),
            400..480 => self.complete(),
            480..520 => self.heartbeat(),
            520..560 => self.fail(),
            560..600 => self.retry(),
            600..615 => {
                let mut all = words(&["timeout"]);
                for _ in 0..self.rng.usize(..3) {
                    all.push(self.held(true).jid);
                }
                all
            }
            615..640 => [words(&["cancel"]), words(&self.some(&JIDS, 3))].concat(),
            640..660 => {
                let mut all = words(&["unfail", self.one(&QUEUES), self.one(&GROUPS)]);
                if self.often(5) {
                    all.push(self.rng.u8(..4).to_string());
                }
                all
            }
            660..680 => {
                words(&["priority", self.one(&JIDS), self.one(&["0", "1", "-1", "2.7", " 0x10 ", "1e2"])])
            }
            680..710 => self.depends(),
            710..720 => self.log(),
            720..735 => {
                let word = self.one(&["track", "untrack", "TRACK", "unTrack", "follow"]);
                if self.often(8) { words(&["track", word, self.one(&JIDS)]) } else { words(&["track"]) }
            }
            735..765 => self.tag(),
            765..785 => self.recur(),
            785..795 => self.recur_update(),
            795..810 => {
                let (jid, _) = self.one(&RECURRING);
                let which = self.one(&["recur.tag", "recur.untag"]);
                [words(&[which, jid]), words(&self.some(&TAGS, 3))].concat()
            }
            810..815 => words(&["unrecur", self.one(&RECURRING).0]),
            815..835 => {
                let (option, values) = self.one(&OPTIONS);
                words(&["config.set", option, self.one(values)])
            }
            835..850 => words(&["config.unset", self.one(&OPTIONS).0]),
            850..856 => [words(&["pause"]), words(&self.some(&QUEUES, 2))].concat(),
            856..866 => [words(&["unpause"]), words(&self.some(&QUEUES, 3))].concat(),
            866..870 => [words(&["queue.forget"]), words(&self.some(&QUEUES, 2))].concat(),
            870..874 => [words(&["worker.deregister"]), words(&self.some(&WORKERS, 2))].concat(),
            _ => self.reading(),
        }
    }

    fn put(&mut self, command: &str) -> Words {
        let (jid, queue) = (self.one(&JIDS), self.one(&QUEUES));
        let mut all = words(&[command]);
        // The older form has no worker argument.
        if command == "requeue" || self.often(7) {
            all.push(if self.often(2) { String::new() } else { self.one(&WORKERS).to_owned() });
        }
        let delay = if self.often(7) { "0" } else { self.one(&["5", "0x10", "-1", "1e2", " 30 "]) };
        let data = if self.often(5) { "{}" } else { self.one(&DATA) };
        all.extend(words(&[queue, jid, self.one(&["k", "k/l", "Ä.b"]), data, delay]));
        for _ in 0..self.rng.usize(..4) {
            let (name, value) = match self.rng.u8(..9) {
                0 | 1 => ("priority", self.one(&["0", "1", "-1", "2.7", "0x10", "1e2"]).to_owned()),
                2 | 3 => ("retries", self.one(&["0", "1", "5", "0x2"]).to_owned()),
                4 | 5 => ("tags", self.tags()),
                6 | 7 => ("depends", list(&self.some(&JIDS, 2))),
                _ => ("colour", "blue".to_owned()),
            };
            all.extend([name.to_owned(), value]);
        }
        all
    }

    fn tags(&mut self) -> String {
        match self.rng.u8(..6) {
            0 => "[7,\"red\",1.50,1e20]".to_owned(),
            1 => "{}".to_owned(),
            _ => list(&self.some(&TAGS, 3)),
        }
    }

    fn pop(&mut self) -> Words {
        let (queue, worker) = (self.one(&QUEUES), self.one(&WORKERS));
        let count = if self.often(9) { "1" } else { "0" };
        self.popped = Some((queue.to_owned(), worker.to_owned()));
        words(&["pop", queue, worker, count])
    }

    /// A reporter of a job: mostly its holder, which is forgotten if the report ends the attempt.
    fn held(&mut self, ends: bool) -> Held {
        if self.held.is_empty() || self.rng.u8(..8) == 0 {
            let [jid, queue, worker] =
                [self.one(&JIDS), self.one(&QUEUES), self.one(&WORKERS)].map(str::to_owned);
            return Held { jid, queue, worker };
        }
        let place = self.rng.usize(..self.held.len());
        let held = self.held.remove(place);
        if !ends {
            let Held { jid, queue, worker } = &held;
            self.held.push(Held { jid: jid.clone(), queue: queue.clone(), worker: worker.clone() });
        }
        held
    }

    fn complete(&mut self) -> Words {
        let next = self.often(3).then(|| self.one(&QUEUES));
        let Held { jid, queue, worker } = self.held(true);
        let mut all = words(&["complete", &jid, &worker, &queue, self.one(&DATA)]);
        if let Some(next) = next {
            all.extend(words(&["next", next]));
        }
        if next.is_some() && self.often(5) || self.rng.u8(..20) == 0 {
            all.extend(words(&["delay", self.one(&["0", "5", "-1", "0x10"])]));
        }
        if next.is_some() && self.often(4) || self.rng.u8(..20) == 0 {
            all.extend(["depends".to_owned(), list(&self.some(&JIDS, 2))]);
        }
        all
    }

    fn heartbeat(&mut self) -> Words {
        let Held { jid, worker, .. } = self.held(false);
        let data = self.often(5).then(|| self.one(&DATA));
        [words(&["heartbeat", &jid, &worker]), words(data.as_slice())].concat()
    }

    fn fail(&mut self) -> Words {
        let Held { jid, worker, .. } = self.held(true);
        let data = self.often(3).then(|| self.one(&DATA));
        let message = self.one(&["what/ever", "", "line\nline"]);
        [words(&["fail", &jid, &worker, self.one(&GROUPS), message]), words(data.as_slice())].concat()
    }

    fn retry(&mut self) -> Words {
        let Held { jid, queue, worker } = self.held(true);
        let delay = self.one(&["0", "7", "-1", "0x10"]);
        let mut all = words(&["retry", &jid, &queue, &worker, delay, "oops", "said"]);
        all.truncate(self.rng.usize(4..=7));
        all
    }

    fn depends(&mut self) -> Words {
        let jid = self.one(&JIDS);
        let others = words(&self.some(&JIDS, 2));
        match self.rng.u8(..8) {
            0 => words(&["depends", jid, "off", "all"]),
            1 => words(&["depends", jid, "upon", "a"]),
            2..5 => [words(&["depends", jid, "off"]), others].concat(),
            _ => [words(&["depends", jid, "on"]), others].concat(),
        }
    }

    fn log(&mut self) -> Words {
        let data = self.often(7).then(|| {
            self.one(&[
                "{}",
                "[]",
                r#"{"by":"me","what":1,"when":[],"q/":{"x":[]}}"#,
                r#"["one",{"two":2}]"#,
                "7",
            ])
        });
        [words(&["log", self.one(&JIDS), self.one(&["hello", "put", ""])]), words(data.as_slice())].concat()
    }

    fn tag(&mut self) -> Words {
        match self.rng.u8(..9) {
            0..4 => [words(&["tag", "add", self.one(&JIDS)]), words(&self.some(&TAGS, 3))].concat(),
            4..7 => [words(&["tag", "remove", self.one(&JIDS)]), words(&self.some(&TAGS, 3))].concat(),
            _ => words(&["tag", "paint", "a"]),
        }
    }

    fn recur(&mut self) -> Words {
        let (jid, intervals) = self.one(&RECURRING);
        let (interval, offset) = (self.one(intervals), self.one(&["0", "5", "-70", "0x10"]));
        let mut all =
            words(&["recur", self.one(&QUEUES), jid, "k", self.one(&DATA), "interval", interval, offset]);
        for _ in 0..self.rng.usize(..3) {
            let (name, value) = match self.rng.u8(..6) {
                0 => ("priority", self.one(&["1", "2.7", "-1"]).to_owned()),
                1 => ("retries", "3".to_owned()),
                2 => ("backlog", self.one(&["0", "1", "3"]).to_owned()),
                3 | 4 => ("tags", self.tags()),
                _ => ("colour", "blue".to_owned()),
            };
            all.extend([name.to_owned(), value]);
        }
        all
    }

    fn recur_update(&mut self) -> Words {
        let (jid, intervals) = self.one(&RECURRING);
        let mut all = words(&["recur.update", jid]);
        for _ in 0..self.rng.usize(..3) {
            all.extend(match self.rng.u8(..8) {
                0 => words(&["priority", self.one(&["1", "2.7"])]),
                1 => words(&["retries", "2"]),
                2 => words(&["backlog", self.one(&["0", "2"])]),
                3 => words(&["interval", self.one(intervals)]),
                4 => words(&["data", self.one(&DATA)]),
                5 => words(&["klass", "other"]),
                6 => words(&["queue", self.one(&QUEUES)]),
                _ => words(&["colour", "blue"]),
            });
        }
        all
    }

    fn reading(&mut self) -> Words {
        let page = [vec![], words(&["0"]), words(&["1"]), words(&["0", "2"]), words(&["0x1", "1e2"])];
        let page = page[self.rng.usize(..page.len())].clone();
        let maybe = |all: Words, rng: &mut fastrand::Rng| if rng.bool() { all } else { vec![] };
        match self.rng.u8(..13) {
            0 | 1 => words(&["get", self.one(&JIDS)]),
            2 => [words(&["multiget"]), words(&self.some(&JIDS, 3))].concat(),
            3 => words(&["length", self.one(&QUEUES)]),
            4 | 5 => {
                let which = self.one(&LISTINGS);
                let queue = if which == "complete" { vec![] } else { words(&[self.one(&QUEUES)]) };
                [words(&["jobs", which]), queue, page].concat()
            }
            6 => {
                let group = words(&[self.one(&GROUPS)]);
                let paged = maybe([group, page].concat(), &mut self.rng);
                [words(&["failed"]), paged].concat()
            }
            7 => {
                let queue = words(&[self.one(&QUEUES)]);
                [words(&["queues"]), maybe(queue, &mut self.rng)].concat()
            }
            8 => {
                let worker = words(&[self.one(&WORKERS)]);
                [words(&["workers"]), maybe(worker, &mut self.rng)].concat()
            }
            9 => words(&["stats", self.one(&QUEUES), self.one(&["0", "90000", "0x10", "180000.5"])]),
            10 => words(&["peek", self.one(&QUEUES), self.one(&["0", "1", " 0x1 "])]),
            11 => match self.rng.u8(..3) {
                0 => [words(&["tag", "top"]), page].concat(),
                1 => [words(&["tag", "get", self.one(&TAGS)]), page].concat(),
                _ => words(&["recur.get", self.one(&RECURRING).0]),
            },
            _ => {
                let option = words(&[self.one(&OPTIONS).0]);
                [words(&["config.get"]), maybe(option, &mut self.rng)].concat()
            }
        }
    }

    /// All read commands, and then pops until the queues are empty.
    pub(crate) fn readings(&mut self) -> Vec<Call> {
        let mut all: Vec<Words> = vec![[words(&["multiget"]), words(&JIDS)].concat()];
        for queue in QUEUES {
            all.push(words(&["length", queue]));
            all.extend(LISTINGS.map(|which| words(&["jobs", which, queue])));
            all.push(words(&["queues", queue]));
            all.extend(["0", "90000", "180000"].map(|day| words(&["stats", queue, day])));
        }
        all.push(words(&["jobs", "complete"]));
        all.extend(WORKERS.map(|worker| words(&["workers", worker])));
        all.extend(GROUPS.map(|group| words(&["failed", group])));
        all.extend(TAGS.map(|tag| words(&["tag", "get", tag])));
        all.push(words(&["tag", "top"]));
        all.extend(["queues", "workers", "failed", "track", "config.get"].map(|command| words(&[command])));
        all.extend(RECURRING.map(|(jid, _)| words(&["recur.get", jid])));
        all.push([words(&["unpause"]), words(&QUEUES)].concat());
        for queue in QUEUES {
            all.push(words(&["peek", queue, "20"]));
            all.extend((0..4).map(|_| words(&["pop", queue, "w1", "1"])));
        }
        all.into_iter()
            .map(|mut words| {
                words.insert(1, self.time().to_string());
                Call { words: words.into_iter().map(String::into_bytes).collect() }
            })
            .collect()
    }
}
