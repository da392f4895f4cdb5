# Each of these works from nothing on Debian: what is missing is installed first.

CARGO ?= cargo

.PHONY: demo test check chaos controls

# A real flash sale on this machine: 500 units, 20,000 buyers, and the verdict.
demo:
	@scripts/install-servers demo
	@echo "doorbuster: building; the first time this takes some minutes"
	$(CARGO) run --release --quiet -- dev --demo

# Every test, against real servers of its own.
test:
	@scripts/install-servers test
	$(CARGO) test --workspace --no-fail-fast -- --test-threads=4

# The stack under attack for five minutes, with a fresh seed; prints how to have the same again.
chaos:
	@scripts/install-servers test
	$(CARGO) run --release --quiet -- drill chaos

# Plants known mistakes in a copy, one by one; each must be caught by a test. Takes half an hour the first
# time, since it builds in a folder of its own.
controls:
	@scripts/install-servers test
	$(CARGO) test --test controls

# What a change must pass besides the tests.
check:
	$(CARGO) fmt --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
