"""CONTROL for the server: what must hold, the test, and the sabotage under which it must fail.

``tests.engine.controls`` does them with the others; tests are named from its folder.
"""

SERVER = "server/plait_server"
STOPS, HEALTH, GUARD = "../server/test_stop_strings.py", "../server/test_health.py", "../server/auth/test_guard.py"
TENANTS = "../e2e/test_tenants.py"
STRUCTURED, TOOLS, NETWORK = "../server/test_structured.py", "../server/test_tools.py", "../server/test_network.py"

CONTROLS = (
    (
        "case 39: what clients call a request is not what the engine calls it",
        "../server/test_bad_input.py::with_one_request_id",
        f"{SERVER}/generation.py",
        "            id=token_hex(12),",
        '            id="the same",',
    ),
    (
        "case 40: from the first signal on new requests are refused",
        "../server/test_drain.py::refused_while_old_ones_finish",
        f"{SERVER}/serve.py",
        "        self._front.health.drain()",
        "        pass",
    ),
    (
        "case 41: what may become a stop string is held back",
        f"{STOPS}::every_length_at_every_offset and 12-1",
        f"{SERVER}/text/stop.py",
        "        held = self._length_to_hold(text)",
        "        held = 0",
    ),
    (
        "case 41: a partial match at the end is released",
        f"{STOPS}::released",
        f"{SERVER}/sequence_text.py",
        "            texts.append(self._matcher.finish())",
        "            pass",
    ),
    (
        "case 42: after its finish reason a choice says nothing more",
        f"{STOPS}::was_on_its_way",
        f"{SERVER}/work.py",
        "            if choice.finished:",
        "            if False:",
    ),
    (
        "case 42: an error in mid-stream is an event",
        "../server/test_streaming.py::an_error_in_the_middle",
        f"{SERVER}/streaming.py",
        '            last = b"data: " + shown.body() + b"\\n\\n"',
        '            last = b""',
    ),
    (
        "case 43: tokens behind a stop string do not count",
        f"{STOPS}::usage_counts_tokens",
        f"{SERVER}/sequence_text.py",
        "        self.completion_tokens += used",
        "        self.completion_tokens += len(delta.token_ids)",
    ),
    (
        "case 43: cached tokens are the prompt's, once",
        "../server/test_streaming.py::those_of_the_prompt_once",
        f"{SERVER}/part.py",
        "        if first.cached_tokens and first.index == 0:",
        "        if first.cached_tokens:",
    ),
    (
        "case 45: a grammar that cannot be used is refused, and never left out",
        f"{STRUCTURED}::bad_grammar_is_400 and pattern",
        f"{SERVER}/grammars.py",
        '            raise bad(param, f"the grammar cannot be used: {error}", "invalid_grammar") from error',
        "            return None",
    ),
    (
        "case 45: compiling has a deadline",
        f"{STRUCTURED}::within_its_deadline",
        f"{SERVER}/grammars.py",
        "            async with asyncio.timeout(self._seconds):",
        "            async with asyncio.timeout(60):",
    ),
    (
        "case 52: an engine that does not answer is not ready",
        f"{HEALTH}::blocked_step",
        f"{SERVER}/health.py",
        "        if time.monotonic() - self._answered > self._config.answer_limit_seconds:",
        "        if False:",
    ),
    (
        "case 52: an engine that has stopped is not live",
        f"{HEALTH}::the_engine_s_death",
        f"{SERVER}/health.py",
        '            return "the engine has stopped"',
        "            return None",
    ),
    (
        "case 53: the tenant comes from the key",
        f"{GUARD}::tenant_comes_from_the_key",
        f"{SERVER}/generation.py",
        '            tenant="" if self.key is None else self.key.tenant,',
        '            tenant="",',
    ),
    (
        "case 53: over HTTP, with a real model",
        f"{TENANTS}::one_that_nobody_has_asked",
        f"{SERVER}/generation.py",
        '            tenant="" if self.key is None else self.key.tenant,',
        '            tenant="",',
    ),
    (
        "case 53: a key that changes its tenant does not stay with the old one",
        f"{TENANTS}::changes_what_it_finds",
        f"{SERVER}/auth/keys.py",
        "        self.keys = self._fixed + read_keys(file)",
        "        self.keys = read_keys(file) + self.keys",
    ),
    (
        "case 53: also after a restart",
        f"{TENANTS}::after_a_restart",
        "engine/plait_engine/sequence.py",
        '        return f"{self.request.tenant}\\0{self.request.cache_salt}"',
        '        return f"\\0{self.request.cache_salt}"',
    ),
    (
        "nobody gets past the guard by another spelling of a path",
        f"{GUARD}::every_route_but_probes",
        f"{SERVER}/auth/guard.py",
        "        if not self.front.keys.required or path in OPEN:",
        '        if not self.front.keys.required or path in OPEN or path.startswith("/v1/models"):',
    ),
    (
        "calls are found however the text is cut",
        f"{TOOLS}::of_every_format and hermes-1",
        f"{SERVER}/reply/until.py",
        "        self._held = text[len(text) - length :]",
        "        length, self._held = 0, str()",
    ),
    (
        "a call that is forced is a grammar",
        f"{TOOLS}::forced_by_a_grammar",
        f"{SERVER}/reply/plan.py",
        "        if self.tools and (self.forced or answer is not None):",
        "        if self.tools and answer is not None:",
    ),
    (
        "reasoning that the prompt opened ends at its mark",
        f"{TOOLS}::field_of_its_own and True",
        f"{SERVER}/routes/chat.py",
        "        opened=body.opens_reply and prompt.rstrip().endswith(OPENER),",
        "        opened=False,",
    ),
    (
        "clients of other networks are refused",
        f"{NETWORK}::only_clients_of_allowed_networks",
        f"{SERVER}/middleware/networks.py",
        "            address = address.ipv4_mapped",
        "            pass",
    ),
    (
        "a proxy is believed only where it is trusted",
        f"{NETWORK}::only_where_it_is_trusted",
        f"{SERVER}/serve.py",
        "        forwarded_allow_ips=list(config.trusted_proxies),",
        '        forwarded_allow_ips="*",',
    ),
    (
        "a request has a limited time",
        f"{NETWORK}::takes_too_long_is_504",
        f"{SERVER}/drain.py",
        "        limit = asyncio.timeout(self._seconds)",
        "        limit = asyncio.timeout(None)",
    ),
)
