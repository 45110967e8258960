//! The block in which macOS keeps the arguments and the variables of a process.
//!
//! ```text
//!  argc (native int) │ path \0 │ \0 … │ argument \0, argc times │ NAME=value \0 … │ \0
//! ```

/// The variables, each with a zero at its end.
pub(crate) fn variables(block: &[u8]) -> Option<&[u8]> {
    let (count, mut rest) = block.split_first_chunk()?;
    let count = usize::try_from(i32::from_ne_bytes(*count)).ok()?;
    rest = after_zero(rest)?;
    let padding = rest.iter().take_while(|byte| **byte == 0).count();
    rest = rest.get(padding..)?;
    for _ in 0..count {
        rest = after_zero(rest)?;
    }
    // An empty one ends the list; beyond it stands what is none of the program's.
    let end = rest.windows(2).position(|pair| pair == [0, 0]).map_or(rest.len(), |end| end + 1);
    rest.get(..end)
}

fn after_zero(bytes: &[u8]) -> Option<&[u8]> {
    let zero = bytes.iter().position(|byte| *byte == 0)?;
    bytes.get(zero + 1..)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(count: i32, texts: &[u8]) -> Vec<u8> {
        [&count.to_ne_bytes(), texts].concat()
    }

    #[test]
    fn the_variables_follow_the_arguments() {
        let whole = block(2, b"/bin/sh\0\0\0\0sh\0A=argument\0A=1\0B=\0\0ptr_munge=\0");
        assert_eq!(variables(&whole), Some(&b"A=1\0B=\0"[..]));
        assert_eq!(variables(&block(1, b"/bin/sh\0sh\0A=1\0")), Some(&b"A=1\0"[..]));
    }

    #[test]
    fn a_block_that_was_cut_or_shows_nothing_has_no_variables() {
        assert_eq!(variables(&block(1, b"/bin/sh\0sh\0")), Some(&b""[..]));
        for cut in [block(2, b"/bin/sh\0sh\0"), block(-1, b"/bin/sh\0sh\0"), block(0, b"/bin"), vec![0; 3]] {
            assert_eq!(variables(&cut), None);
        }
    }
}
