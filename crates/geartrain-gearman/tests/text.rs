//! Admin commands: what is parsed, and the exact bytes of the replies.

use bytes::{Bytes, BytesMut};
use geartrain_gearman::text::{Command, ErrorReply, Line, QueueLimits, write_end, write_ok, write_value};

fn parse(line: &str) -> Result<Command, ErrorReply> {
    Command::parse(&Bytes::copy_from_slice(line.as_bytes()), true)
}

fn refused(line: &str) -> String {
    let mut answer = BytesMut::new();
    parse(line).expect_err(line).write(&mut answer);
    String::from_utf8(answer.to_vec()).unwrap()
}

#[test]
fn every_command_is_parsed() {
    let limits = |high, normal, low| QueueLimits { high, normal, low };
    let max_queue = |limits| Command::MaxQueue { function: "Resize".into(), limits };
    for (line, command) in [
        ("status", Command::Status),
        ("STATUS", Command::Status),
        ("status   ", Command::Status),
        ("status extra words do no harm at all", Command::Status),
        ("prioritystatus", Command::PriorityStatus),
        ("workers", Command::Workers),
        ("jobs", Command::Jobs),
        ("clients", Command::Clients),
        ("getpid", Command::GetPid),
        ("verbose", Command::Verbose),
        ("verbose debug", Command::Verbose),
        ("version", Command::Version),
        ("Version 1 2 3 4 5 6", Command::Version),
        ("show jobs", Command::ShowJobs),
        ("Show  JOBS ", Command::ShowJobs),
        ("show unique jobs", Command::ShowUniqueJobs),
        ("cancel job H:lap:1", Command::CancelJob { handle: "H:lap:1".into() }),
        ("create function Resize", Command::CreateFunction { function: "Resize".into() }),
        ("DROP Function Resize", Command::DropFunction { function: "Resize".into() }),
        ("maxqueue Resize", max_queue(limits(None, None, None))),
        ("maxqueue Resize 7", max_queue(limits(Some(7), Some(7), Some(7)))),
        ("maxqueue Resize 0", max_queue(limits(None, None, None))),
        ("maxqueue Resize 3 -1 0", max_queue(limits(Some(3), None, None))),
        ("maxqueue  Resize  1  2  3 ", max_queue(limits(Some(1), Some(2), Some(3)))),
        ("shutdown", Command::Shutdown { graceful: false }),
        ("shutdown Graceful", Command::Shutdown { graceful: true }),
    ] {
        assert_eq!(parse(line), Ok(command), "{line:?}");
    }
}

#[test]
fn invalid_commands_get_the_replies_that_clients_expect() {
    let invalid = |command: &str| {
        format!("ERR INVALID_ARGUMENTS An+incomplete+set+of+arguments+was+sent+to+this+command+{command}\r\n")
    };
    let unknown = |word: &str| format!("ERR UNKNOWN_COMMAND Unknown+server+command{word}\r\n");
    for (line, answer) in [
        ("", unknown("")),
        (" ", unknown("")),
        (" status", unknown("")),
        ("dance", unknown("dance")),
        ("Dance with me", unknown("Dance")),
        ("status\t", unknown("status\t")),
        ("statuses", unknown("statuses")),
        ("show", unknown("show")),
        ("show ", unknown("show")),
        ("cancel", unknown("cancel")),
        ("Cancel job", unknown("Cancel")),
        ("show nothing", "ERR UNKNOWN_SHOW_ARGUMENTS\r\n".to_owned()),
        ("show jobs please", "ERR UNKNOWN_SHOW_ARGUMENTS\r\n".to_owned()),
        ("show unique", "ERR UNKNOWN_SHOW_ARGUMENTS\r\n".to_owned()),
        ("show 1 2 3 4 5", invalid("show")),
        ("cancel culture H:lap:1", "ERR UNKNOWN_ERROR\r\n".to_owned()),
        ("cancel job H:lap:1 now", invalid("cancel")),
        ("create", invalid("create")),
        ("Create function", invalid("create")),
        ("create queue Resize", invalid("create")),
        ("create function Resize Crop", invalid("create")),
        ("create function Re\0size", invalid("create")),
        ("drop", invalid("drop")),
        ("drop function", invalid("drop")),
        ("drop function Resize Crop", invalid("drop")),
        ("maxqueue", invalid("maxqueue")),
        ("maxqueue Resize few", invalid("maxqueue")),
        ("maxqueue Resize 1 2", invalid("maxqueue")),
        ("maxqueue Resize 1 2 x", invalid("maxqueue")),
        ("maxqueue Resize 99999999999999999999", invalid("maxqueue")),
        ("maxqueue Resize 1 2 3 4", invalid("maxqueue")),
        ("shutdown now", invalid("shutdown")),
        ("shutdown graceful please", invalid("shutdown")),
    ] {
        assert_eq!(refused(line), answer, "{line:?}");
    }
    let long = "f".repeat(4097);
    assert_eq!(refused(&format!("create function {long}")), invalid("create"));
    assert_eq!(refused(&format!("maxqueue {long}")), invalid("maxqueue"));
    assert!(parse(&format!("create function {}", &long[1..])).is_ok());
    for line in ["ShutDown", "ShutDown graceful", "ShutDown 1 2 3 4 5 6"] {
        let error = Command::parse(&Bytes::from(line), false).unwrap_err();
        assert_eq!(error, ErrorReply::UnknownCommand("ShutDown".into()));
    }
}

#[test]
fn an_unknown_command_is_repeated_unchanged() {
    let line = Bytes::from_static(b"\xff\0\r word");
    let mut answer = BytesMut::new();
    Command::parse(&line, false).unwrap_err().write(&mut answer);
    assert_eq!(&answer[..], b"ERR UNKNOWN_COMMAND Unknown+server+command\xff\0\r\r\n");
}

#[test]
fn replies_have_exactly_these_bytes() {
    let mut out = BytesMut::new();
    write_ok(&mut out);
    write_value(&mut out, "1.1.20-geartrain-0.1.0");
    write_value(&mut out, 12345);
    ErrorReply::UnknownJob.write(&mut out);
    ErrorReply::FunctionNotFound.write(&mut out);
    ErrorReply::FunctionInUse.write(&mut out);
    let expected = "OK\nOK 1.1.20-geartrain-0.1.0\nOK 12345\nERR UNKNOWN_JOB\r\nERR function not found\r\n\
         ERR there are still connected workers or executing clients\r\n";
    assert_eq!(out, expected);
}

#[test]
fn lists_have_exactly_these_bytes() {
    let (function, unique) = (&b"resize"[..], &b"u1"[..]);
    let worker = Some("[::ffff:10.0.0.7]:4000".parse().unwrap());
    let connection = |address: &str, id, functions| Line::Connection {
        number: 31,
        address: address.parse().unwrap(),
        id,
        functions,
    };
    for (line, expected) in [
        (Line::Status { function, total: 3, running: 1, workers: 2 }, &b"resize\t3\t1\t2\n"[..]),
        (Line::PriorityStatus { function, high: 1, normal: 2, low: 3, workers: 4 }, b"resize\t1\t2\t3\t4\n"),
        (connection("127.0.0.1", b"w1", &[b"resize", b"crop"]), b"31 127.0.0.1 w1 : resize crop\n"),
        (connection("::ffff:10.0.0.7", b"", &[]), b"31 10.0.0.7 - :\n"),
        (connection("fe80::1", b"my w\0\xc3\xa9\x7f\n", &[]), b"31 fe80::1 my_w_\xc3\xa9__ :\n"),
        (Line::Job { handle: b"H:lap:1", retries: 2, ignored: false, queued: true }, b"H:lap:1\t2\t0\t1\n"),
        (Line::Unique { unique }, b"u1\n"),
        (Line::Unique { unique: b"" }, b"\n"),
        (Line::Unique { unique: b"." }, b"_\n"),
        (Line::Attached { function, unique, worker, listeners: 5 }, b"resize\tu1\t10.0.0.7:4000\t5\n"),
        (Line::Attached { function, unique, worker: None, listeners: 0 }, b"resize\tu1\t-\t0\n"),
        (Line::Client { address: "[::1]:5000".parse().unwrap() }, b"[::1]:5000\n"),
        (Line::ClientJob { function, unique, worker }, b"\tresize\tu1\t10.0.0.7:4000\n"),
        (Line::ClientJob { function, unique, worker: None }, b"\tresize\tu1\t-\n"),
        // A name cannot add a field or a line.
        (Line::Status { function: b"a\tb\nc\r", total: 0, running: 0, workers: 0 }, b"a_b_c_\t0\t0\t0\n"),
        (Line::Unique { unique: b"\xff\n.\n" }, b"\xff_._\n"),
    ] {
        let mut out = BytesMut::new();
        line.write(&mut out);
        assert_eq!(out, expected, "{line:?}");
    }
    let mut end = BytesMut::new();
    write_end(&mut end);
    assert_eq!(end, ".\n");
}
