//! The display: what it draws, what keys do, and what is read.

use std::time::{Duration, Instant};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use geartrain::{
    Client, Group, Jid, Klass, QueueCounts, QueueFigures, QueueName, Timestamp, WorkerCounts, WorkerName,
};
use pollster::block_on;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::{Color, Modifier};

use super::act::act;
use super::draw::draw;
use super::input::Effect;
use super::snapshot::{HeldJob, JobCard, JobList, JobRow, ListOf, QueueRow, Snapshot, Trend, WorkerRow};
use super::source::{Refreshed, Source, Wanted};
use super::state::{Action, Pane, State, Update};
use super::theme::Theme;
use crate::failure::Failure;
use crate::settings::Production;

fn queue(name: &str, waiting: u64, paused: bool) -> QueueRow {
    let name = QueueName::new(name).unwrap();
    QueueRow {
        counts: QueueCounts {
            name: name.clone(),
            waiting,
            running: 2,
            stalled: 0,
            scheduled: 0,
            depends: 0,
            recurring: 0,
            paused,
        },
        figures: Some(QueueFigures {
            name,
            failed: 3,
            failed_or_more: false,
            oldest: Some(Timestamp::from(940)),
            rate: None,
        }),
        rate: Some(4.2),
        trend: Trend::Done(vec![0.0, 2.0, 8.0]),
    }
}

fn worker(name: &str, klass: &str) -> WorkerRow {
    WorkerRow {
        counts: WorkerCounts {
            name: WorkerName::new(name).unwrap(),
            jobs: 1,
            stalled: 0,
            seen: Some(Timestamp::from(998)),
        },
        holds: vec![HeldJob {
            jid: Jid::new("j1").unwrap(),
            queue: Some(QueueName::new("mail").unwrap()),
            klass: Some(Klass::new(klass).unwrap()),
            since: Some(Timestamp::from(910)),
            is_stalled: false,
        }],
    }
}

fn group(name: &str) -> Group {
    Group::new(name).unwrap()
}

fn snapshot(queues: Vec<QueueRow>) -> Snapshot {
    Snapshot {
        at: Timestamp::from(1_000),
        queues,
        workers: Some(vec![worker("w1", "welcome"), worker("w2", "bill")]),
        failures: Some(vec![(group("smtp"), 12), (group("timeout"), 1)]),
        trend: Trend::Done(vec![1.0, 8.4]),
    }
}

fn queues() -> Vec<QueueRow> {
    vec![queue("mail", 12_431, false), queue("video", 7, true), queue("reports", 40, false)]
}

/// A display with a screen, at a time that the test moves.
struct Display {
    state: State,
    screen: Terminal<TestBackend>,
    now: Instant,
}

fn display(width: u16, height: u16) -> Display {
    display_in(width, height, None)
}

fn display_in(width: u16, height: u16, production: Option<Production>) -> Display {
    let now = Instant::now();
    let state = State::new("redis://queue.example:7411".to_owned(), Duration::from_secs(1), production, now);
    let screen = Terminal::new(TestBackend::new(width, height)).unwrap();
    let mut display = Display { state, screen, now };
    display.show(snapshot(queues()));
    display
}

impl Display {
    fn show(&mut self, snapshot: Snapshot) {
        self.update(Refreshed { snapshot, ..Refreshed::default() });
    }

    fn update(&mut self, refreshed: Refreshed) {
        self.state.update(Update::Refreshed(Box::new(refreshed)), self.now);
    }

    fn key(&mut self, code: KeyCode) -> Option<Effect> {
        self.state.key(KeyEvent::new(code, KeyModifiers::NONE), self.now)
    }

    fn keys(&mut self, keys: &str) -> Option<Effect> {
        keys.chars().map(|key| self.key(KeyCode::Char(key))).last().flatten()
    }

    /// The text of the screen.
    fn text(&mut self) -> String {
        self.draw(Theme { has_colors: true });
        self.screen.backend().to_string()
    }

    fn draw(&mut self, theme: Theme) {
        self.screen.draw(|frame| draw(frame, &mut self.state, theme, self.now)).unwrap();
    }

    fn assert_shows(&mut self, texts: &[&str]) {
        let screen = self.text();
        for text in texts {
            assert!(screen.contains(text), "{text:?} in\n{screen}");
        }
    }

    fn assert_hides(&mut self, texts: &[&str]) {
        let screen = self.text();
        for text in texts {
            assert!(!screen.contains(text), "{text:?} in\n{screen}");
        }
    }

    /// The names of the queues, from top to bottom.
    fn order(&self) -> Vec<&str> {
        self.state.pane(Pane::Queues).rows.names.iter().map(String::as_str).collect()
    }
}

#[test]
fn the_overview_fits_80_by_24() {
    let mut display = display(80, 24);
    let text = display.text();
    let lines: Vec<&str> = text.lines().map(|line| line.trim_matches('"')).collect();
    assert_eq!(
        lines,
        [
            " geartrain top  redis://queue.example:7411                             00:16:40 ",
            " waiting 12,478   running 6   failed 13   done 13/s                          ▂█ ",
            " paused: video                                                                  ",
            "╭ Queues 3 ──────────────────────────────────────────────────────── by waiting ╮",
            "│ QUEUE            WAITING  RUNNING  STALLED  FAILED  OLDEST  DONE/S  TREND    │",
            "│ mail              12,431        2        0       3      1m     4.2       ▁▃█ │",
            "│ reports               40        2        0       3      1m     4.2       ▁▃█ │",
            "│ video    paused        7        2        0       3      1m     4.2       ▁▃█ │",
            "│                                                                              │",
            "│                                                                              │",
            "│                                                                              │",
            "╰──────────────────────────────────────────────────────────────────────────────╯",
            "╭ Workers 2 ────────────────────────────────────────────────────────── by jobs ╮",
            "│ WORKER  JOBS  SEEN  HOLDS                                                    │",
            "│ w1         1    2s  welcome of mail for 1m30s                                │",
            "│ w2         1    2s  bill of mail for 1m30s                                   │",
            "│                                                                              │",
            "╰──────────────────────────────────────────────────────────────────────────────╯",
            "╭ Failures 2 ───────────────────────────────────────────────────────── by jobs ╮",
            "│ GROUP    JOBS                                                                │",
            "│ smtp       12                                                                │",
            "│ timeout     1                                                                │",
            "╰──────────────────────────────────────────────────────────────────────────────╯",
            " ↑↓ select  Tab pane  Enter open  / filter  s sort  p pause  ? help  q quit     ",
        ],
        "{text}"
    );
}

#[test]
fn a_narrow_screen_keeps_names_and_depths_and_a_low_one_the_pane_of_the_cursor() {
    for (width, height) in [(1, 1), (2, 3), (10, 5), (30, 8), (40, 12), (60, 20), (200, 60), (500, 3)] {
        let mut display = display(width, height);
        display.text();
        display.keys("?");
        display.text();
        display.keys("x/mail");
        display.text();
    }
    let mut display = display(40, 12);
    display.assert_shows(&["QUEUE", "WAITING", "12,431", "mail", "video"]);
    display.assert_hides(&["w1", "smtp", "TREND"]);
    display.key(KeyCode::Tab);
    display.assert_shows(&["w1", "WORKER"]);
    display.key(KeyCode::Tab);
    display.assert_shows(&["smtp"]);
    display.key(KeyCode::BackTab);
    display.assert_shows(&["WORKER"]);
}

#[test]
fn without_colours_the_cursor_is_still_seen() {
    let mut display = display(80, 24);
    let colors = |display: &Display| {
        let cells = display.screen.backend().buffer().content();
        cells.iter().filter(|cell| cell.fg != Color::Reset).count()
    };
    display.draw(Theme { has_colors: true });
    assert!(colors(&display) > 0);
    display.draw(Theme { has_colors: false });
    assert_eq!(colors(&display), 0);
    let buffer = display.screen.backend().buffer();
    assert!(buffer[(2, 5)].modifier.contains(Modifier::REVERSED));
    assert!(!buffer[(2, 6)].modifier.contains(Modifier::REVERSED));
}

#[test]
fn what_a_backend_does_not_know_is_said_or_left_out() {
    let mut display = display(80, 24);
    let mut plain = queue("sums", 3, false);
    (plain.figures, plain.rate, plain.trend) = (None, None, Trend::Waiting(vec![1.0, 3.0]));
    let trend = Trend::Waiting(vec![3.0]);
    display.show(Snapshot { queues: vec![plain], trend, ..Snapshot::default() });
    display.assert_shows(&["Workers 0", "not known by this queue", "WAITING TREND", "sums"]);
    let screen = display.text();
    assert_eq!(screen.matches("not known by this queue").count(), 2);
    assert!(!screen.contains("failed") && !screen.contains("done"), "{screen}");
}

#[test]
fn names_cannot_control_the_terminal() {
    let mut display = display(100, 24);
    display.show(snapshot(vec![queue("a\x1b[2Jb", 1, true)]));
    display.assert_shows(&["a\\u{1b}[2Jb", "paused: a\\u{1b}[2Jb"]);
}

#[test]
fn rows_keep_their_order_while_the_cursor_moves_and_then_it_stays_on_its_row() {
    let mut display = display(80, 24);
    assert_eq!(display.order(), ["mail", "reports", "video"]);
    display.key(KeyCode::Down);
    let busy = || vec![queue("video", 90, false), queue("new", 99, false), queue("mail", 0, false)];
    display.show(snapshot([busy(), vec![queue("reports", 1, false)]].concat()));
    assert_eq!(display.order(), ["mail", "reports", "video", "new"]);
    display.now += Duration::from_secs(6);
    display.show(snapshot([busy(), vec![queue("reports", 1, false)]].concat()));
    assert_eq!(display.order(), ["new", "video", "reports", "mail"]);
    assert_eq!(display.state.pane(Pane::Queues).rows.selected(), Some("reports"));
    // Its queue is gone.
    display.show(snapshot(busy()));
    assert_eq!(display.order(), ["new", "video", "mail"]);
    assert_eq!(display.state.pane(Pane::Queues).rows.selected(), Some("mail"));
    display.show(snapshot(Vec::new()));
    display.assert_shows(&["no queues yet; `geartrain put` creates the first"]);
    assert_eq!((display.key(KeyCode::Enter), display.keys("jkG")), (None, None));
}

#[test]
fn s_sorts_by_the_next_column_and_keeps_the_cursor_at_the_top() {
    let mut display = display(80, 24);
    let mut rows = queues();
    rows[1].counts.running = 9;
    rows[2].rate = Some(99.0);
    display.show(snapshot(rows));
    for (sort, first) in [
        ("running", "video"),
        ("failed", "mail"),
        ("oldest", "mail"),
        ("rate", "reports"),
        ("name", "mail"),
        ("waiting", "mail"),
    ] {
        display.keys("s");
        assert_eq!(display.order()[0], first, "{sort}");
        display.assert_shows(&[&format!("by {sort}")]);
        assert_eq!(display.state.pane(Pane::Queues).rows.selected(), Some(first));
    }
}

#[test]
fn a_long_list_scrolls_with_the_cursor() {
    let mut display = display(80, 24);
    display.show(snapshot(
        (0..200).map(|number| queue(&format!("q{number:03}"), 200 - number, false)).collect(),
    ));
    display.assert_shows(&["Queues 200", "q000"]);
    display.key(KeyCode::End);
    display.assert_shows(&["q199"]);
    display.assert_hides(&["q000"]);
    display.key(KeyCode::PageUp);
    display.assert_shows(&["q189"]);
    display.key(KeyCode::Home);
    display.assert_shows(&["q000"]);
}

#[test]
fn a_filter_is_typed_and_cleared() {
    let mut display = display(80, 24);
    display.keys("/Il");
    display.key(KeyCode::Backspace);
    display.assert_shows(&["show names with: I", "Queues 2 /I", "mail", "video"]);
    display.keys("d");
    assert_eq!(display.order(), ["video"]);
    display.assert_shows(&["nothing has this text in its name"]);
    // Keys of the overview are letters here.
    assert_eq!(display.keys("q"), None);
    display.key(KeyCode::Backspace);
    display.key(KeyCode::Enter);
    assert_eq!(display.order(), ["video"]);
    assert_eq!(display.key(KeyCode::Esc), None, "it clears the filter first");
    assert_eq!(display.order(), ["mail", "reports", "video"]);
    assert_eq!(display.key(KeyCode::Esc), Some(Effect::Quit));
}

#[test]
fn a_frozen_display_goes_on_with_the_newest_snapshot() {
    let mut display = display(80, 24);
    display.keys(" ");
    display.show(snapshot(vec![queue("later", 1, false)]));
    display.assert_shows(&["FROZEN at 00:16:40", "mail", "Space go on"]);
    display.keys(" ");
    display.assert_shows(&["later"]);
    display.assert_hides(&["FROZEN", "mail-"]);
}

#[test]
fn the_display_says_that_the_queue_does_not_answer() {
    let mut display = display(80, 24);
    display.now += Duration::from_secs(3);
    display.assert_shows(&["00:16:40"]);
    display.now += Duration::from_secs(2);
    display.assert_shows(&["no answer for 5 s: reconnecting", "mail"]);
    display.state.update(Update::Lost(Failure::Unreachable("refused".to_owned())), display.now);
    display.assert_shows(&["reconnecting: refused", "mail"]);
    display.show(snapshot(queues()));
    display.assert_hides(&["reconnecting"]);
}

#[test]
fn a_queue_is_paused_only_after_a_yes() {
    let mut display = display(80, 24);
    assert_eq!(display.keys("p"), None);
    display.assert_shows(&["pause mail, so that its jobs are not handed out? (y/n)"]);
    assert_eq!(display.keys("n"), None);
    display.assert_shows(&["nothing was changed"]);
    let mail = QueueName::new("mail").unwrap();
    assert_eq!(display.keys("py"), Some(Effect::Act(Action::Pause(mail))));
    display.key(KeyCode::End);
    let video = QueueName::new("video").unwrap();
    assert_eq!(display.keys("py"), Some(Effect::Act(Action::Resume(video))));
    display.state.update(Update::Acted(Err("pause needs the role operator".to_owned())), display.now);
    display.assert_shows(&["pause needs the role operator"]);
    display.key(KeyCode::Tab);
    assert_eq!(display.keys("py"), None);
    display.keys("p");
    display.assert_shows(&["select a queue to pause it"]);
}

#[test]
fn a_context_in_production_is_confirmed_by_its_name_once() {
    let mut display = display_in(100, 24, Some(Production::new("live", false)));
    assert_eq!(display.keys("pyes"), None);
    display.assert_shows(&["live is in production, type its name: yes"]);
    assert_eq!(display.key(KeyCode::Enter), None);
    display.assert_shows(&["that is not live: nothing was changed"]);
    display.keys("p");
    assert_eq!(display.key(KeyCode::Esc), None);
    assert_eq!(display.keys("plive"), None);
    let mail = QueueName::new("mail").unwrap();
    assert_eq!(display.key(KeyCode::Enter), Some(Effect::Act(Action::Pause(mail.clone()))));
    assert_eq!(display.keys("py"), Some(Effect::Act(Action::Pause(mail))));
}

#[test]
fn a_group_and_a_failed_job_are_retried_after_a_yes() {
    let mut display = display(80, 24);
    display.keys("r");
    display.assert_shows(&["select a group of failures, or a failed job, to retry it"]);
    display.key(KeyCode::BackTab);
    display.keys("r");
    display.assert_shows(&["retry the 12 failed jobs of smtp? (y/n)"]);
    assert_eq!(display.keys("y"), Some(Effect::Act(Action::Unfail(group("smtp")))));
    display.key(KeyCode::Enter);
    assert_eq!(display.state.wanted().list, Some(ListOf::Group(group("smtp"))));
    display.assert_shows(&["Failed jobs of group smtp", "reading …"]);
    let job = |name: &str, state| JobRow {
        jid: Some(Jid::new(name).unwrap()),
        state,
        klass: Klass::new("welcome").unwrap(),
        note: "1m ago, smtp: it said 451".to_owned(),
    };
    let list = JobList {
        of: ListOf::Group(group("smtp")),
        jobs: vec![job("j1", "failed"), job("j2", "waiting")],
        remark: None,
    };
    display.update(Refreshed { snapshot: snapshot(queues()), list: Some(list), card: None });
    display.assert_shows(&["j1   failed   welcome  1m ago, smtp: it said 451"]);
    assert_eq!(display.keys("ry"), Some(Effect::Act(Action::Requeue(Jid::new("j1").unwrap()))));
    display.key(KeyCode::Down);
    assert_eq!(display.keys("ry"), None);
}

#[test]
fn a_job_opens_from_a_list_and_esc_goes_back() {
    let mut display = display(60, 12);
    display.key(KeyCode::Enter);
    let of = ListOf::Queue(QueueName::new("mail").unwrap());
    let jid = Jid::new("j1").unwrap();
    let row = JobRow {
        jid: Some(jid.clone()),
        state: "waiting",
        klass: Klass::new("k").unwrap(),
        note: String::new(),
    };
    let list = JobList { of, jobs: vec![row], remark: None };
    display.update(Refreshed { snapshot: snapshot(queues()), list: Some(list), card: None });
    assert_eq!(display.keys("py").map(|effect| effect != Effect::Quit), Some(true), "the queue of the list");
    display.key(KeyCode::Enter);
    assert_eq!(display.state.wanted().card, Some(jid.clone()));
    let words = "word ".repeat(30);
    let text =
        format!("job j1 is waiting: it is next\n\n\x1b[2mjid\x1b[0m  j1\n{words}\n{}", "line\n".repeat(20));
    let card = Some(JobCard { jid, text });
    display.update(Refreshed { snapshot: snapshot(queues()), list: None, card });
    display.assert_shows(&["Job j1", "job j1 is waiting: it is next", "jid  j1", "lines 1 to 6 of 26"]);
    display.key(KeyCode::End);
    display.assert_shows(&["lines 21 to 26 of 26"]);
    display.key(KeyCode::Up);
    display.assert_shows(&["lines 20 to 25 of 26"]);
    display.key(KeyCode::Esc);
    display.assert_shows(&["Jobs of queue mail"]);
    display.key(KeyCode::Esc);
    display.assert_shows(&["Queues 3"]);
    assert_eq!(display.keys("q"), Some(Effect::Quit));
}

#[test]
fn control_c_leaves_from_everywhere_and_question_mark_lists_the_keys() {
    let mut display = display(100, 30);
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    for keys in ["", "/", "p", "?"] {
        display.keys(keys);
        assert_eq!(display.state.key(control_c, display.now), Some(Effect::Quit), "{keys:?}");
        display.key(KeyCode::Esc);
    }
    display.keys("?");
    for (key, what) in super::input::KEYS {
        display.assert_shows(&[key, what]);
    }
    assert_eq!(display.keys("q"), None, "it closes the help");
    display.assert_hides(&["any key closes this"]);
}

fn memory() -> Client {
    block_on(geartrain::connect("memory:")).unwrap()
}

#[test]
fn a_refresh_reads_queues_workers_failures_lists_and_cards() {
    let client = memory();
    let mut source = Source::new(client.clone(), None);
    let of_mail = ListOf::Queue(QueueName::new("mail").unwrap());
    let (first, refreshed, snapshot) = block_on(async {
        let first = source.refresh(&Wanted::default()).await.unwrap();
        for jid in ["done", "held", "broken", "next"] {
            client.put("mail", "welcome", "{}").jid(jid).await.unwrap();
        }
        client.put("mail", "later", "{}").jid("later").delay(Duration::from_secs(600)).await.unwrap();
        source.refresh(&Wanted::default()).await.unwrap();
        source.refresh(&Wanted::default()).await.unwrap();
        let done = client.pop("mail", "w1").await.unwrap().unwrap();
        client.complete(&done).await.unwrap();
        client.pop("mail", "w1").await.unwrap().unwrap();
        let broken = client.pop("mail", "w2").await.unwrap().unwrap();
        client.fail(&broken, "smtp", "it said 451\nmore").await.unwrap();
        let wanted = Wanted {
            workers: vec![WorkerName::new("w1").unwrap()],
            list: Some(of_mail.clone()),
            card: Some(Jid::new("later").unwrap()),
        };
        let refreshed = source.refresh(&wanted).await.unwrap();
        (first, refreshed, source.read_once().await.unwrap())
    });
    assert!(first.snapshot.queues.is_empty() && first.snapshot.failures.is_some());

    let totals = refreshed.snapshot.totals();
    assert_eq!((totals.waiting, totals.running, totals.later, totals.failed), (1, 1, 1, Some(1)));
    assert!(totals.rate.is_some_and(|rate| rate > 0.0));
    let list = refreshed.list.unwrap();
    let shown: Vec<(String, &str)> =
        list.names().into_iter().zip(list.jobs.iter().map(|job| job.state)).collect();
    let expected = [("held", "running"), ("next", "waiting"), ("later", "scheduled"), ("broken", "failed")];
    assert_eq!(shown, expected.map(|(jid, state)| (jid.to_owned(), state)));
    assert_eq!(list.jobs[2].note, "in 10m");
    assert!(list.jobs[3].note.ends_with("smtp: it said 451"), "{}", list.jobs[3].note);
    let card = refreshed.card.unwrap();
    assert!(card.text.starts_with("job later of mail is scheduled: it may start in 10m"), "{}", card.text);
    assert!(card.text.contains("submitted to mail"), "{}", card.text);
    for workers in [&refreshed.snapshot.workers, &snapshot.workers] {
        let workers = workers.as_ref().unwrap();
        let w1 = workers.iter().find(|row| row.counts.name.as_str() == "w1").unwrap();
        assert!(w1.holds_text(refreshed.snapshot.at).starts_with("welcome of mail for "), "{w1:?}");
    }
}

#[test]
fn a_large_job_is_read_once_and_clipped() {
    let client = memory();
    block_on(async {
        let text = "x".repeat(100_000);
        client.put("mail", "welcome", text.as_str()).jid("large").await.unwrap();
        let wanted = Wanted { card: Some(Jid::new("large").unwrap()), ..Wanted::default() };
        let mut source = Source::new(client, None);
        let card = source.refresh(&wanted).await.unwrap().card.unwrap();
        assert!(card.text.len() < 10_000 && card.text.contains("more bytes"), "{}", card.text);
        assert!(card.text.contains("submitted to mail"), "{}", card.text);
        assert!(source.refresh(&wanted).await.unwrap().card.is_none());
        source.refresh(&Wanted::default()).await.unwrap();
        assert!(source.refresh(&wanted).await.unwrap().card.is_some(), "it was opened again");
    });
}

#[test]
fn the_list_of_a_long_queue_says_that_there_are_more() {
    let client = memory();
    let list = block_on(async {
        for _ in 0..30 {
            client.put("mail", "welcome", "{}").await.unwrap();
        }
        let list = Some(ListOf::Queue(QueueName::new("mail").unwrap()));
        let wanted = Wanted { list, ..Wanted::default() };
        Source::new(client, None).refresh(&wanted).await.unwrap().list.unwrap()
    });
    assert_eq!((list.jobs.len(), list.remark.as_deref()), (25, Some("only 25 of the jobs that are waiting")));
}

#[test]
fn the_document_has_all_figures() {
    let view = snapshot(queues()).view();
    assert_eq!(view["waiting"], 12_478);
    assert_eq!(view["failed"], 13);
    assert_eq!(view["paused"], serde_json::json!(["video"]));
    assert_eq!(view["queues"][0]["per_second"], 4.2);
    assert_eq!(view["queues"][0]["oldest"], 940);
    assert_eq!(view["workers"][0]["holds"][0]["klass"], "welcome");
    assert_eq!(view["failures"][0], serde_json::json!({ "group": "smtp", "count": 12 }));
    let unknown = Snapshot::default().view();
    assert!(unknown["workers"].is_null() && unknown["failures"].is_null() && unknown["failed"].is_null());
}

#[test]
fn actions_change_the_queue() {
    let client = memory();
    block_on(async {
        client.put("mail", "welcome", "{}").jid("j1").await.unwrap();
        let mail = QueueName::new("mail").unwrap();
        assert_eq!(act(&client, Action::Pause(mail.clone())).await.unwrap(), "paused mail");
        assert!(client.pop("mail", "w1").await.unwrap().is_none());
        assert_eq!(act(&client, Action::Resume(mail)).await.unwrap(), "resumed mail");
        for action in [Action::Unfail(group("smtp")), Action::Requeue(Jid::new("j1").unwrap())] {
            let job = client.pop("mail", "w1").await.unwrap().unwrap();
            client.fail(&job, "smtp", "it said 451").await.unwrap();
            let done = act(&client, action).await.unwrap();
            assert!(["1 job requeued of smtp", "submitted j1 to mail"].contains(&done.as_str()), "{done}");
        }
        assert!(act(&client, Action::Unfail(group("smtp"))).await.is_err());
    });
}
