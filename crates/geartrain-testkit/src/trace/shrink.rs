//! Shrinking: removes the steps of a trace that its failure does not need.

/// The shortest version of a list that it finds with which something still happens: leaves out long pieces as
/// long as it can, then shorter ones, at last single things.
///
/// ```
/// use geartrain_testkit::trace::shrink;
/// let trace: Vec<u32> = (0..100).collect();
/// assert_eq!(shrink(trace, |trace| trace.contains(&17) && trace.contains(&71)), [17, 71]);
/// ```
pub fn shrink<T: Clone>(mut list: Vec<T>, mut still_happens: impl FnMut(&[T]) -> bool) -> Vec<T> {
    let mut piece = list.len().div_ceil(2);
    while piece > 0 {
        let mut shorter = false;
        let mut from = 0;
        while from < list.len() {
            let to = (from + piece).min(list.len());
            let rest = [&list[..from], &list[to..]].concat();
            if still_happens(&rest) {
                list = rest;
                shorter = true;
            } else {
                from = to;
            }
        }
        // Single things are tried again until none can go: one may hang on another that went after it.
        if piece > 1 || !shorter {
            piece /= 2;
        }
    }
    list
}
