"""The SQS actions by name: one file each, and none imports another."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from penstock.frontend.call import Action
from penstock.frontend.sqs import (
    add_permission,
    cancel_message_move_task,
    change_message_visibility,
    change_message_visibility_batch,
    create_queue,
    delete_message,
    delete_message_batch,
    delete_queue,
    get_queue_attributes,
    get_queue_url,
    list_dead_letter_source_queues,
    list_message_move_tasks,
    list_queue_tags,
    list_queues,
    purge_queue,
    receive_message,
    remove_permission,
    send_message,
    send_message_batch,
    set_queue_attributes,
    start_message_move_task,
    tag_queue,
    untag_queue,
)

ACTIONS: Final[Mapping[str, Action]] = MappingProxyType(
    {
        action.name: action
        for action in (
            add_permission.ACTION,
            cancel_message_move_task.ACTION,
            change_message_visibility.ACTION,
            change_message_visibility_batch.ACTION,
            create_queue.ACTION,
            delete_message.ACTION,
            delete_message_batch.ACTION,
            delete_queue.ACTION,
            get_queue_attributes.ACTION,
            get_queue_url.ACTION,
            list_dead_letter_source_queues.ACTION,
            list_message_move_tasks.ACTION,
            list_queue_tags.ACTION,
            list_queues.ACTION,
            purge_queue.ACTION,
            receive_message.ACTION,
            remove_permission.ACTION,
            send_message.ACTION,
            send_message_batch.ACTION,
            set_queue_attributes.ACTION,
            start_message_move_task.ACTION,
            tag_queue.ACTION,
            untag_queue.ACTION,
        )
    }
)
