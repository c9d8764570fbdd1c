"""Classes that declare something, for rules that read it: `job.code=[tests/support]`, from the repository's root."""


class NeedsLogprobs:
    needs_rollout_logprobs = True

    def loss(self, tokens):
        raise NotImplementedError


class NeedsContainer:
    needs_container = True

    def instances(self, split):
        raise NotImplementedError

    def workspace(self, instance):
        raise NotImplementedError

    def prompt(self, instance):
        raise NotImplementedError

    async def grade(self, instance, patch, sandboxes, timeout_s):
        raise NotImplementedError


class NeedsGroup:
    needs_group = True

    def advantages(self, groups):
        raise NotImplementedError


class PaysTurns:
    pays_turns = True

    async def reward(self, attempt):
        raise NotImplementedError

    async def turn_rewards(self, attempt):
        raise NotImplementedError


class Allows:
    def findings(self, config):
        return []


class Raises:
    def findings(self, config):
        raise LookupError("the list of projects is away")


class Judges:
    async def grade(self, instance, patch, workspace, sandboxes, timeout_s):
        raise NotImplementedError


class Runs:
    has_network = True
    ends_when_killed = True

    async def create(self, workspace, owner, door):
        raise NotImplementedError

    async def close(self):
        raise NotImplementedError

    async def is_there(self, sandbox_id):
        raise NotImplementedError
