//! `geartrain drill` on this machine: the same harness that a user runs, small in `./test` and large in
//! `./test long`.

use crate::sandbox;

use geartrain_testkit::scaled;
use sandbox::Sandbox;

#[test]
fn a_drill_loses_nothing_and_leaves_nothing_behind() {
    let sandbox = Sandbox::new();
    let (kills, full_disks) = (scaled("5", "200"), scaled("1", "10"));
    let report = sandbox.json(&[
        "drill",
        "--disk",
        &sandbox.path(""),
        "--kills",
        kills,
        "--freezes",
        scaled("1", "5"),
        "--full-disks",
        full_disks,
        "--clock-jumps",
        scaled("5", "50"),
    ]);
    assert_eq!((&report["lost"], &report["doubled"]), (&0.into(), &0.into()), "{report:#}");
    assert_eq!(report["promised"], report["kept"]);
    let faults = report["faults"].as_array().unwrap();
    let names: Vec<_> = faults.iter().map(|fault| fault["fault"].as_str().unwrap()).collect();
    assert_eq!(names, ["kill", "freeze", "full-disk", "clock-jump"]);
    for fault in faults {
        // Only root can mount a small file system; the report says so.
        let is_skipped = fault["skipped"].as_str().is_some_and(|why| why.contains("run the drill as root"));
        assert!(
            is_skipped && fault["fault"] == "full-disk" || fault["promised"].as_u64() > Some(0),
            "{fault:#}"
        );
    }
    assert_eq!(std::fs::read_dir(&sandbox.directory).unwrap().count(), 0);
}

#[test]
fn a_drill_that_cannot_run_says_why() {
    let sandbox = Sandbox::new();
    for (arguments, code, said) in [
        (&["--kills", "1", "--disk", "/dev/null"][..], 2, "/dev/null"),
        (&["--kills", "0", "--freezes", "0", "--full-disks", "0", "--clock-jumps", "0"], 2, "--kills"),
        (&["--url", "memory:"], 2, "--disk"),
    ] {
        let (out, err, exit) = sandbox.try_run(&[&["drill"], arguments].concat());
        assert_eq!((out.as_str(), exit), ("", code), "{err}");
        assert!(err.contains(said), "{err}");
    }
}

#[test]
fn the_text_is_a_table_and_a_sentence() {
    let sandbox = Sandbox::new();
    let shown = sandbox.run(&[
        "drill",
        "--disk",
        &sandbox.path(""),
        "--kills",
        "1",
        "--freezes",
        "0",
        "--full-disks",
        "0",
        "--clock-jumps",
        "0",
    ]);
    assert!(shown.starts_with("FAULT") && shown.contains("kill -9"), "{shown}");
    assert!(shown.contains("No acknowledged operation was lost"), "{shown}");
}
