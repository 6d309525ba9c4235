//! Codec of the current protocol: every packet to bytes and back, and every kind of invalid packet.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use geartrain_gearman::packet::{
    Assignment, Calendar, Fault, Grab, JobStatus, Mode, Packet, Priority, Report, ReportBody, Request,
    Response, Submission, is_exceptions_option,
};
use geartrain_gearman::{EncodeError, Incoming, Options, Parser};

/// A packet on the wire.
fn wire(magic: &[u8; 4], kind: u32, data: &[u8]) -> Vec<u8> {
    let length = u32::try_from(data.len()).unwrap();
    [&magic[..], &kind.to_be_bytes(), &length.to_be_bytes(), data].concat()
}

fn packet(mut parser: Parser, bytes: &[u8]) -> Packet {
    let mut buffer = BytesMut::from(bytes);
    let Some(Incoming::Packet(packet)) = parser.next(&mut buffer).unwrap() else { panic!("no packet") };
    assert!(buffer.is_empty());
    packet
}

/// Decodes as a server.
fn request(kind: u32, data: &[u8]) -> Result<Request, Fault> {
    Request::decode(packet(Parser::server(Options::default()), &wire(b"\0REQ", kind, data)))
}

/// Decodes as a client.
fn response(kind: u32, data: &[u8]) -> Result<Response, Fault> {
    Response::decode(packet(Parser::client(Options::default()), &wire(b"\0RES", kind, data)))
}

fn b(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn submission(mode: Mode) -> Request {
    Request::Submit(Submission { function: b("resize"), unique: b("u1"), data: b("a\0b"), mode })
}

fn report(body: ReportBody) -> Report {
    Report { handle: b("H:lap:1"), body }
}

fn reports() -> Vec<(u32, &'static [u8], Report)> {
    vec![
        (12, b"H:lap:1\x003\x0010", report(ReportBody::Status { numerator: b("3"), denominator: b("10") })),
        (13, b"H:lap:1\0x\0y", report(ReportBody::Complete(b("x\0y")))),
        (13, b"H:lap:1\0", report(ReportBody::Complete(b("")))),
        (14, b"H:lap:1", report(ReportBody::Fail)),
        (25, b"H:lap:1\0oh", report(ReportBody::Exception(b("oh")))),
        (28, b"H:lap:1\0part\0", report(ReportBody::Data(b("part\0")))),
        (29, b"H:lap:1\0\0", report(ReportBody::Warning(b("\0")))),
    ]
}

fn submissions() -> Vec<(u32, &'static [u8], Mode)> {
    let calendar =
        Calendar { minute: Some(59), hour: Some(0), day: Some(31), month: Some(12), weekday: Some(6) };
    let tuesdays = Calendar { weekday: Some(1), ..Calendar::default() };
    vec![
        (7, b"resize\0u1\0a\0b", Mode::Foreground(Priority::Normal)),
        (21, b"resize\0u1\0a\0b", Mode::Foreground(Priority::High)),
        (33, b"resize\0u1\0a\0b", Mode::Foreground(Priority::Low)),
        (18, b"resize\0u1\0a\0b", Mode::Background(Priority::Normal)),
        (32, b"resize\0u1\0a\0b", Mode::Background(Priority::High)),
        (34, b"resize\0u1\0a\0b", Mode::Background(Priority::Low)),
        (35, b"resize\0u1\x0059\x000\x0031\x0012\x006\0a\0b", Mode::Scheduled(calendar)),
        (35, b"resize\0u1\0\0\0\0\x001\0a\0b", Mode::Scheduled(tuesdays)),
        (36, b"resize\0u1\x001893456000\0a\0b", Mode::Epoch(1_893_456_000)),
        (37, b"resize\0u1\0join\0\0a\0b", Mode::Reduce { reducer: b("join"), background: false }),
        (38, b"resize\0u1\0\0\0a\0b", Mode::Reduce { reducer: b(""), background: true }),
    ]
}

fn requests() -> Vec<(u32, &'static [u8], Request)> {
    let timeout = |milliseconds| Some(Duration::from_millis(milliseconds));
    let mut requests = vec![
        (1, &b"resize"[..], Request::CanDo { function: b("resize"), timeout: None }),
        (2, b"resize", Request::CantDo { function: b("resize") }),
        (3, b"", Request::ResetAbilities),
        (4, b"", Request::PreSleep),
        (9, b"", Request::Grab(Grab::Plain)),
        (15, b"H:lap:1", Request::GetStatus { handle: b("H:lap:1") }),
        (16, b"\0a\0", Request::Echo { data: b("\0a\0") }),
        (16, b"", Request::Echo { data: b("") }),
        (22, b"w 1", Request::SetClientId { id: b("w 1") }),
        (23, b"resize\x001500", Request::CanDo { function: b("resize"), timeout: timeout(1500) }),
        (24, b"", Request::AllYours),
        (26, b"exceptions", Request::SetOption { option: b("exceptions") }),
        (30, b"", Request::Grab(Grab::Unique)),
        (39, b"", Request::Grab(Grab::All)),
        (41, b"u1", Request::GetStatusUnique { unique: b("u1") }),
    ];
    requests.extend(reports().into_iter().map(|(kind, data, report)| (kind, data, Request::Report(report))));
    requests.extend(submissions().into_iter().map(|(kind, data, mode)| (kind, data, submission(mode))));
    requests
}

fn responses() -> Vec<(u32, &'static [u8], Response)> {
    let status = JobStatus { known: true, running: true, numerator: 3, denominator: 4_294_967_295 };
    let assign = |grab, unique: &'static str, reducer: &'static str| {
        let (handle, function, data) = (b("H:lap:1"), b("resize"), b("\0a"));
        let (unique, reducer) = (b(unique), b(reducer));
        Response::Assign(Assignment { grab, handle, function, unique, reducer, data })
    };
    let mut responses = vec![
        (6, &b""[..], Response::Noop),
        (8, b"H:lap:1", Response::JobCreated { handle: b("H:lap:1") }),
        (10, b"", Response::NoJob),
        (11, b"H:lap:1\0resize\0\0a", assign(Grab::Plain, "", "")),
        (17, b"\0", Response::Echo { data: b("\0") }),
        (
            19,
            b"JOB_NOT_FOUND\0no such job",
            Response::Error { code: b("JOB_NOT_FOUND"), text: b("no such job") },
        ),
        (20, b"H:lap:1\x001\x001\x003\x004294967295", Response::Status { handle: b("H:lap:1"), status }),
        (20, b"H\x000\x000\x000\x000", Response::Status { handle: b("H"), status: JobStatus::default() }),
        (27, b"exceptions", Response::OptionSet { option: b("exceptions") }),
        (31, b"H:lap:1\0resize\0u1\0\0a", assign(Grab::Unique, "u1", "")),
        (40, b"H:lap:1\0resize\0u1\0join\0\0a", assign(Grab::All, "u1", "join")),
        (
            42,
            b"u1\x001\x001\x003\x004294967295\x002",
            Response::StatusUnique { unique: b("u1"), status, clients: 2 },
        ),
    ];
    responses
        .extend(reports().into_iter().map(|(kind, data, report)| (kind, data, Response::Report(report))));
    responses
}

#[test]
fn every_request_round_trips_through_its_bytes() {
    for (kind, data, expected) in requests() {
        let mut bytes = BytesMut::from("before");
        expected.encode(&mut bytes).unwrap();
        assert_eq!(bytes[6..], wire(b"\0REQ", kind, data), "{expected:?}");
        assert_eq!(request(kind, data), Ok(expected));
    }
}

#[test]
fn every_response_round_trips_through_its_bytes() {
    for (kind, data, expected) in responses() {
        let mut bytes = BytesMut::from("before");
        expected.encode(&mut bytes).unwrap();
        assert_eq!(bytes[6..], wire(b"\0RES", kind, data), "{expected:?}");
        assert_eq!(response(kind, data), Ok(expected));
    }
}

#[test]
fn every_packet_type_is_a_request_or_a_response_or_neither() {
    let (taken, given): (Vec<u32>, Vec<u32>) = (
        requests().iter().map(|(kind, ..)| *kind).chain([42]).collect(),
        responses().iter().map(|(kind, ..)| *kind).collect(),
    );
    for kind in (0..300).chain([u32::MAX]) {
        let data = b"a\0b\0c\0d\0e\0f\0g";
        let refused = Some(Fault::Type(kind));
        assert_eq!(request(kind, data).err() == refused, !taken.contains(&kind), "{kind}");
        assert_eq!(response(kind, data).err() == refused, !given.contains(&kind), "{kind}");
    }
}

#[test]
fn known_mistakes_of_existing_clients_are_tolerated() {
    let can_do = |milliseconds: Option<u64>| Request::CanDo {
        function: "f".into(),
        timeout: milliseconds.map(Duration::from_millis),
    };
    let report = |body| Request::Report(Report { handle: "H".into(), body });
    let status = |numerator: &'static str, denominator: &'static str| {
        report(ReportBody::Status { numerator: numerator.into(), denominator: denominator.into() })
    };
    let reduce = |data: &'static str| {
        let mode = Mode::Reduce { reducer: "r".into(), background: false };
        Request::Submit(Submission { function: "f".into(), unique: "u".into(), data: data.into(), mode })
    };
    let epoch = |seconds| {
        let (function, unique, data) = ("f".into(), "u".into(), "d".into());
        Request::Submit(Submission { function, unique, data, mode: Mode::Epoch(seconds) })
    };
    let cases: Vec<(u32, &[u8], Request)> = vec![
        (1, b"f\0", can_do(None)),
        (2, b"f\0", Request::CantDo { function: "f".into() }),
        (3, b"ignored", Request::ResetAbilities),
        (4, b"ignored", Request::PreSleep),
        (9, b"\0", Request::Grab(Grab::Plain)),
        (24, b"ignored", Request::AllYours),
        // Timeouts: less than a second becomes one, anything that is not a number becomes none.
        (23, b"f", can_do(None)),
        (23, b"f\0", can_do(None)),
        (23, b"f\x000", can_do(None)),
        (23, b"f\x00-5", can_do(None)),
        (23, b"f\0soon", can_do(None)),
        (23, b"f\0\0\0\x13\x88", can_do(None)),
        (23, b"f\x001", can_do(Some(1000))),
        (23, b"f\x00999", can_do(Some(1000))),
        (23, b"f\x001001ms", can_do(Some(1001))),
        (23, b"f\x0099999999999999999999999", can_do(Some(u64::MAX))),
        // Reports without their NUL, or with one too many.
        (13, b"H", report(ReportBody::Complete(Bytes::new()))),
        (25, b"H", report(ReportBody::Exception(Bytes::new()))),
        (28, b"H", report(ReportBody::Data(Bytes::new()))),
        (29, b"H", report(ReportBody::Warning(Bytes::new()))),
        (14, b"H\0", report(ReportBody::Fail)),
        (12, b"H\x003\x0010\0", status("3", "10")),
        (12, b"H\x003", status("3", "0")),
        (12, b"H\0\0", status("0", "0")),
        (12, b"H", status("0", "0")),
        (12, b"H\x001.5\0abc", status("1.5", "abc")),
        // Status requests.
        (15, b"H\0", Request::GetStatus { handle: "H".into() }),
        (15, b"", Request::GetStatus { handle: "".into() }),
        (41, b"u\0", Request::GetStatusUnique { unique: "u".into() }),
        (42, b"u", Request::GetStatusUnique { unique: "u".into() }),
        (26, b"Exceptions\0", Request::SetOption { option: "Exceptions\0".into() }),
        // A reducer is followed by an empty argument, or by the data.
        (37, b"f\0u\0r\0\0data", reduce("data")),
        (37, b"f\0u\0r\0data", reduce("data")),
        (37, b"f\0u\0r\0\0\0data", reduce("\0data")),
        (37, b"f\0u\0r\0\0", reduce("")),
        (37, b"f\0u\0r\0", reduce("")),
        // An epoch that is not a number is 0.
        (36, b"f\0u\x000\0d", epoch(0)),
        (36, b"f\0u\0\0d", epoch(0)),
        (36, b"f\0u\x00-1\0d", epoch(0)),
        (36, b"f\0u\0tomorrow\0d", epoch(0)),
        (36, b"f\0u\x009223372036854775807\0d", epoch(i64::MAX as u64)),
        (36, b"f\0u\x00-99999999999999999999\0d", epoch(0)),
    ];
    for (kind, data, expected) in cases {
        assert_eq!(request(kind, data), Ok(expected), "{kind} {:?}", Bytes::copy_from_slice(data));
    }
    let id = vec![b'i'; 128];
    assert_eq!(request(22, &id), Ok(Request::SetClientId { id: Bytes::copy_from_slice(&id[..127]) }));
}

#[test]
fn options_are_recognised_by_name() {
    for (option, known) in [
        (&b"exceptions"[..], true),
        (b"EXCEPTIONS\0", true),
        (b"exceptions\0\0", false),
        (b"streaming", false),
        (b"", false),
    ] {
        assert_eq!(is_exceptions_option(option), known);
    }
}

#[test]
fn a_submission_of_any_kind_needs_all_its_nuls() {
    for (kind, data, mode) in submissions() {
        // The reducer's second NUL may be missing, and the data behind the last one may hold NULs.
        let (nuls, name) = match mode {
            Mode::Foreground(_) | Mode::Background(_) => (2, "unique ID"),
            Mode::Scheduled(_) => (7, "schedule"),
            Mode::Epoch(_) => (3, "epoch"),
            Mode::Reduce { .. } => (3, "reducer"),
        };
        let places: Vec<usize> = (0..data.len()).filter(|at| data[*at] == 0).collect();
        assert!(request(kind, &data[..=places[nuls - 1]]).is_ok(), "{kind}");
        assert_eq!(request(kind, &data[..places[nuls - 1]]), Err(Fault::Incomplete(name)), "{kind}");
        assert_eq!(request(kind, &data[..places[1]]), Err(Fault::Incomplete("unique ID")), "{kind}");
        assert_eq!(request(kind, &data[..places[0]]), Err(Fault::Incomplete("function")), "{kind}");
        assert_eq!(request(kind, b""), Err(Fault::Incomplete("function")), "{kind}");
    }
}

#[test]
fn names_have_limits() {
    let with = |function: usize, unique: usize| {
        [&vec![b'f'; function][..], b"\0", &vec![b'u'; unique], b"\0data"].concat()
    };
    for kind in [7, 18, 21, 32, 33, 34] {
        assert!(request(kind, &with(1, 0)).is_ok());
        assert!(request(kind, &with(4096, 64)).is_ok());
        assert_eq!(request(kind, &with(0, 0)), Err(Fault::FunctionName));
        assert_eq!(request(kind, &with(4097, 0)), Err(Fault::FunctionName));
        assert_eq!(request(kind, &with(1, 65)), Err(Fault::UniqueTooLarge));
    }
    let reduce = |reducer: usize| [b"f\0u\0", &vec![b'r'; reducer][..], b"\0\0data"].concat();
    assert!(request(37, &reduce(64)).is_ok());
    assert_eq!(request(38, &reduce(65)), Err(Fault::UniqueTooLarge));
    for kind in [1, 2, 23] {
        for name in [&b""[..], b"\0", &vec![b'f'; 4097]] {
            assert_eq!(request(kind, name), Err(Fault::FunctionName), "{kind}");
        }
        assert!(request(kind, &vec![b'f'; 4096]).is_ok());
    }
    assert_eq!(request(1, b"a\0b"), Err(Fault::FunctionName));
    assert_eq!(request(1, b"a\0\0"), Err(Fault::FunctionName));
}

#[test]
fn invalid_arguments_are_refused_by_name() {
    let scheduled = |calendar: &str| format!("f\0u\0{}\0d", calendar.replace(' ', "\0")).into_bytes();
    for (kind, data, why) in [
        (15, b"H\0H".to_vec(), "A handle holds no NUL"),
        (41, b"u\0u\0".to_vec(), "A unique ID holds no NUL"),
        (36, b"f\0u\x009223372036854775808\0d".to_vec(), "An epoch fits 64 bits"),
        (36, b"f\0u\x0099999999999999999999\0d".to_vec(), "An epoch fits 64 bits"),
        (35, scheduled("60 0 1 1 0"), "A minute is 0 to 59 or empty"),
        (35, scheduled("-1 0 1 1 0"), "A minute is 0 to 59 or empty"),
        (35, scheduled("* 0 1 1 0"), "A minute is 0 to 59 or empty"),
        (35, scheduled("0 24 1 1 0"), "An hour is 0 to 23 or empty"),
        (35, scheduled("0 0 0 1 0"), "A day of the month is 1 to 31 or empty"),
        (35, scheduled("0 0 32 1 0"), "A day of the month is 1 to 31 or empty"),
        (35, scheduled("0 0 1 0 0"), "A month is 1 to 12 or empty"),
        (35, scheduled("0 0 1 13 0"), "A month is 1 to 12 or empty"),
        (35, scheduled("0 0 1 1 7"), "A day of the week is 0 to 6, from Monday, or empty"),
        (35, scheduled("0 0 1 1 9999999999"), "A day of the week is 0 to 6, from Monday, or empty"),
    ] {
        assert_eq!(request(kind, &data), Err(Fault::Argument(why)));
    }
}

#[test]
fn incomplete_responses_are_tolerated_or_refused_by_name() {
    let unknown =
        |handle: &'static str| Response::Status { handle: handle.into(), status: JobStatus::default() };
    assert_eq!(response(20, b"H\0\0\0\0"), Ok(unknown("H")));
    assert_eq!(response(19, b"BAD"), Ok(Response::Error { code: "BAD".into(), text: "".into() }));
    for (kind, data, missing) in [
        (11, &b"H\0f"[..], "function"),
        (11, b"H", "handle"),
        (31, b"H\0f\0u", "unique ID"),
        (40, b"H\0f\0u\0r", "reducer"),
        (20, b"H", "handle"),
        (20, b"H\x001\x001", "running"),
        (42, b"u\x001\x001\x005", "numerator"),
    ] {
        assert_eq!(response(kind, data), Err(Fault::Incomplete(missing)), "{kind}");
    }
}

#[test]
fn progress_is_parsed_leniently() {
    for (numerator, denominator, progress) in [
        ("3", "10", (3, 10)),
        ("1.5", "abc", (1, 0)),
        ("", "", (0, 0)),
        ("-3", " 7", (0, 7)),
        ("4294967296", "99999999999999999999", (u32::MAX, u32::MAX)),
    ] {
        assert_eq!(ReportBody::Status { numerator, denominator }.progress(), Some(progress));
    }
    assert_eq!(ReportBody::<&str>::Fail.progress(), None);
}

#[test]
fn an_assignment_holds_the_fields_that_the_worker_asked_for() {
    let told = |grab, reducer| {
        let (handle, function, unique, data) = ("H", "f", "u", "d");
        let mut bytes = BytesMut::new();
        let assignment = Assignment { grab, handle, function, unique, reducer, data };
        Response::Assign(assignment).encode(&mut bytes).unwrap();
        bytes
    };
    assert_eq!(told(Grab::Plain, "r"), wire(b"\0RES", 11, b"H\0f\0d")[..]);
    assert_eq!(told(Grab::Unique, "r"), wire(b"\0RES", 31, b"H\0f\0u\0d")[..]);
    assert_eq!(told(Grab::All, "r"), wire(b"\0RES", 40, b"H\0f\0u\0r\0d")[..]);
    assert_eq!(told(Grab::All, ""), wire(b"\0RES", 31, b"H\0f\0u\0d")[..]);
}

#[test]
fn faults_have_the_texts_that_clients_expect() {
    let status = ReportBody::Status { numerator: "1", denominator: "2" };
    let cases = [
        (Fault::Magic, "INVALID_MAGIC\0Request magic expected"),
        (Fault::Type(5), "INVALID_COMMAND\0Command not expected"),
        (Fault::Incomplete("epoch"), "INVALID_PACKET\0The packet ends before the end of its epoch"),
        (Fault::UniqueTooLarge, "ARGUMENT_TOO_LARGE\0Unique value too large"),
        (Fault::FunctionName, "INVALID_FUNCTION_NAME\0A function's name has 1 to 4096 bytes and no NUL"),
        (Fault::Argument("An epoch fits 64 bits"), "INVALID_ARGUMENT\0An epoch fits 64 bits"),
        (
            Fault::PacketTooLarge { bytes: 9, bytes_max: 8 },
            "ARGUMENT_TOO_LARGE\0A packet has at most 8 bytes, not 9",
        ),
        (Fault::QueueFull, "QUEUE_ERROR\0Job queue is full"),
        (Fault::Storage("disk full".to_owned()), "QUEUE_ERROR\0disk full"),
        (Fault::UnknownOption, "UNKNOWN_OPTION\0Server does not recognize given option"),
        (Fault::job_not_found(&status), "JOB_NOT_FOUND\0Job given in work result not found"),
        (
            Fault::job_not_found(&ReportBody::Complete("")),
            "JOB_NOT_FOUND\0Job given in work result not found",
        ),
        (
            Fault::job_not_found(&ReportBody::<&str>::Fail),
            "JOB_NOT_FOUND\0Job given in work result not found",
        ),
        (Fault::job_not_found(&ReportBody::Data("")), "JOB_NOT_FOUND\0Job does not exist on server"),
        (Fault::job_not_found(&ReportBody::Warning("")), "JOB_NOT_FOUND\0Job does not exist on server"),
        (
            Fault::job_not_found(&ReportBody::Exception("")),
            "JOB_NOT_FOUND\0An exception was received for a job that does not exist",
        ),
    ];
    for (fault, data) in cases {
        let mut bytes = BytesMut::new();
        fault.encode(&mut bytes);
        assert_eq!(bytes[..], wire(b"\0RES", 19, data.as_bytes()), "{fault:?}");
    }
}

#[test]
fn a_packet_that_cannot_be_encoded_leaves_the_buffer_unchanged() {
    let mut out = BytesMut::from("before");
    let refused = |result: Result<(), EncodeError>, name| {
        assert_eq!(result, Err(EncodeError::Nul(name)));
    };
    let submission = |function, unique, mode| {
        Request::Submit(Submission { function, unique, data: "\0", mode }).encode(&mut BytesMut::new())
    };
    let plain = Mode::Foreground(Priority::Normal);
    refused(submission("a\0", "", plain.clone()), "function");
    refused(submission("a", "\0", plain), "unique ID");
    refused(submission("a", "", Mode::Reduce { reducer: "r\0", background: true }), "reducer");
    refused(Request::CanDo { function: "a\0", timeout: None }.encode(&mut out), "function");
    refused(Request::GetStatus { handle: "\0" }.encode(&mut out), "handle");
    refused(Request::GetStatusUnique { unique: "\0" }.encode(&mut out), "unique ID");
    refused(Response::JobCreated { handle: "H\0" }.encode(&mut out), "handle");
    // With a NUL behind the handle, existing clients would wait for ever.
    refused(Response::Report(Report { handle: "H\0", body: ReportBody::Fail }).encode(&mut out), "handle");
    let status = ReportBody::Status { numerator: "1", denominator: "2\0" };
    refused(Response::Report(Report { handle: "H", body: status }).encode(&mut out), "denominator");
    let status = JobStatus::default();
    refused(Response::StatusUnique { unique: "u\0", status, clients: 0 }.encode(&mut out), "unique ID");
    refused(Response::Error { code: "A\0", text: "" }.encode(&mut out), "code");
    assert_eq!(out, "before");
}
