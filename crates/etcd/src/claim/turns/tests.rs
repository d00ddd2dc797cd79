//! The text of turn keys, and the grants by turns against a model of the store.

use leasehold_fuzz::fuzz_text;

use super::*;

fn next(place: &str, created: i64) -> Next {
    Next {
        place: place.to_owned(),
        created,
    }
}

#[test]
fn a_line_is_read_as_it_was_written() {
    let lines: [&[Next]; 5] = [
        &[],
        &[next("694d9ab0c3f21a0b-0", 9)],
        &[
            next("694d9ab0c3f21a0b-0", 9),
            next("694d9ab0c3f21a0b-0", 10),
        ],
        &[
            next("694d9ab0c3f21a0b-0", 9),
            next("694d9ab0c3f21c0b-12", 12),
            next("694d9ab0c3f21c0b-1", 400),
        ],
        &[next("1-0", i64::MAX - 1), next("f-0", i64::MAX)],
    ];
    for behind in lines {
        let turn = Turn {
            created: 7,
            behind: behind.to_vec(),
        };
        assert_eq!(
            Turn::read(&turn.write()).as_ref(),
            Some(&turn),
            "{}",
            turn.write()
        );
        assert_eq!(named(&turn.write()), Some(7));
    }
    let turn = Turn {
        created: 7,
        behind: lines[3].to_vec(),
    };
    assert_eq!(turn.write(), "7 694d9ab0c3f21 a0b-0=2 c0b-12=3 c0b-1=388");
}

#[test]
fn whatever_a_text_says_it_names_nobody_by_mistake() {
    for odd in [
        "",
        "x",
        "7",
        "7 a",
        "7 a =1",
        "7  1-0=0",
        "7  1-0=-1",
        "7  1-0=9223372036854775807",
        "7  x-0=1",
        "7  1=1",
        "7  1-0",
    ] {
        let read = Turn::read(odd);
        assert!(read.is_none_or(|turn| turn.behind.is_empty()), "{odd:?}");
    }
    fuzz_text("7 694d9ab0c3f21 a0b-0=2 c0b-12=3 c0b-1=388", |text| {
        let Some(turn) = Turn::read(text) else { return };
        assert_eq!(Some(turn.created), named(text));
        assert_eq!(Turn::read(&turn.write()), Some(turn));
    });
}

#[test]
fn who_came_behind_more_is_more_patient() {
    assert_eq!(
        [0, 64, -1].map(patience),
        [1000, 2280, 1000].map(Duration::from_millis)
    );
}
